"""A finding: what is wrong or worth knowing, how to mend it, and which backend it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from neuron_spec.errors import PreflightError

Severity = Literal["error", "warning", "info"]
ForBackend = Literal["any", "reference", "neuron"]


@dataclass(frozen=True)
class Finding:
    """One result of the preflight.

    Attributes:
        code: stable name of the check, as `draft-lm-head-missing`.
        source: where the rule comes from (NxDI module, paper, or this package).
        backend: the backend whose builds it concerns. What the reference backend does not compute
            is no reason against a build for Neuron, and the other way round.
    """

    code: str
    severity: Severity
    message: str
    remedy: str
    source: str
    backend: ForBackend = "any"

    def concerns(self, backend: str) -> bool:
        """Whether a build for that backend is touched by it."""
        return self.backend in ("any", backend)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def error(
    code: str, message: str, remedy: str, source: str, backend: ForBackend = "any"
) -> Finding:
    """A finding that stops the build."""
    return Finding(code, "error", message, remedy, source, backend)


def raise_on_errors(findings: Sequence[Finding], backend: str | None = None) -> None:
    """Raise `PreflightError` if one of the findings is an error.

    Args:
        backend: only what concerns builds for it counts, and is carried by the error; None: all.
    """
    counted = [f for f in findings if backend is None or f.concerns(backend)]
    if any(finding.severity == "error" for finding in counted):
        raise PreflightError(counted)
