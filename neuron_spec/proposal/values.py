"""A value of a proposed spec, with the reason for it where it needs one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Value:
    """What a field is set to; `reason` is empty where the value speaks for itself."""

    value: Any
    reason: str = ""


Table = dict[str, Value]


def plain(table: Table) -> dict[str, Any]:
    """The values alone."""
    return {name: value.value for name, value in table.items()}
