"""A finding: what is wrong or worth knowing, and how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from neuron_spec.errors import PreflightError

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One result of the preflight.

    Attributes:
        code: stable name of the check, as `draft-lm-head-missing`.
        source: where the rule comes from (NxDI module, paper, or this package).
    """

    code: str
    severity: Severity
    message: str
    remedy: str
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def error(code: str, message: str, remedy: str, source: str) -> Finding:
    """A finding that stops the build."""
    return Finding(code, "error", message, remedy, source)


def raise_on_errors(findings: Sequence[Finding]) -> None:
    """Raise `PreflightError` with all findings if one of them is an error."""
    if any(finding.severity == "error" for finding in findings):
        raise PreflightError(findings)
