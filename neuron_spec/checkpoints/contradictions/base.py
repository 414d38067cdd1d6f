"""One contradiction, and how lists of them are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

# Heads with a decoder layer of their own, hence with rotary positions.
FAMILIES_WITH_LAYERS = ("eagle", "eagle3")

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Contradiction:
    """Two statements of a checkpoint that differ, or one that is missing.

    Attributes:
        code: stable name, as `tied-head`.
        severity: an error cannot be settled by us; the others are settled as `message` says.
        mend: what the user can do about it.
        source: who behaves as the message says.
    """

    code: str
    severity: Severity
    message: str
    mend: str
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def errors(found: Iterable[Contradiction]) -> list[Contradiction]:
    """Those that stop a preparation."""
    return [item for item in found if item.severity == "error"]


def remarks(found: Iterable[Contradiction]) -> list[Contradiction]:
    """Those that were settled, and are to be told."""
    return [item for item in found if item.severity != "error"]
