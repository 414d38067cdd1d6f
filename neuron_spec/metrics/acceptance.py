"""Acceptance, defined once.

acceptance rate    accepted proposals / proposals
acceptance length  tokens committed per verification step, the target's own token included (1 … k+1)

position           place in the drafted chain; in a tree the depth, where one of several proposals
                   can be accepted

A step counts whole, also when a stop or the token limit cuts the output inside its block: the
figures describe the draft and the rule, not where a text happened to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class AcceptanceCounts:
    """Running counts over verification steps."""

    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_position: list[int] = field(default_factory=list)
    steps_by_accepted: list[int] = field(default_factory=list)
    """How many steps accepted 0, 1, 2, … proposals."""

    def add_step(
        self, num_drafted: int, num_accepted: int, num_positions: int | None = None
    ) -> None:
        """Count one verification step of one row.

        Args:
            num_positions: positions at which something was proposed; those of a chain by default.
        """
        self.num_steps += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        _count_prefix(
            self.drafted_by_position, num_drafted if num_positions is None else num_positions
        )
        _count_prefix(self.accepted_by_position, num_accepted)
        _add_lists(self.steps_by_accepted, [0] * num_accepted + [1])

    def add(self, other: AcceptanceCounts) -> None:
        """Add another set of counts to this one."""
        self.num_steps += other.num_steps
        self.num_drafted += other.num_drafted
        self.num_accepted += other.num_accepted
        _add_lists(self.drafted_by_position, other.drafted_by_position)
        _add_lists(self.accepted_by_position, other.accepted_by_position)
        _add_lists(self.steps_by_accepted, other.steps_by_accepted)

    @property
    def rate(self) -> float | None:
        """Accepted proposals / proposals; None before anything was proposed."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def length(self) -> float | None:
        """Tokens committed per verification step; None before the first step."""
        return 1 + self.num_accepted / self.num_steps if self.num_steps else None

    @property
    def rate_by_position(self) -> list[float]:
        """For position i: in how many of the steps that proposed there something was accepted;
        empty where a server does not tell what was proposed where."""
        accepted = self.accepted_by_position
        padded = accepted + [0] * (len(self.drafted_by_position) - len(accepted))
        return [a / d for a, d in zip(padded, self.drafted_by_position, strict=False)]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "num_steps": self.num_steps,
            "num_drafted_tokens": self.num_drafted,
            "num_accepted_tokens": self.num_accepted,
            "acceptance_rate": self.rate,
            "acceptance_length": self.length,
            "acceptance_rate_by_position": self.rate_by_position,
            "steps_by_num_accepted": self.steps_by_accepted,
            "drafted_by_position": self.drafted_by_position,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AcceptanceCounts:
        """What `as_dict` wrote."""
        by_accepted = list(data["steps_by_num_accepted"])
        return cls(
            num_steps=data["num_steps"],
            num_drafted=data["num_drafted_tokens"],
            num_accepted=data["num_accepted_tokens"],
            accepted_by_position=[sum(by_accepted[n:]) for n in range(1, len(by_accepted))],
            drafted_by_position=list(data["drafted_by_position"]),
            steps_by_accepted=by_accepted,
        )


def _count_prefix(counts: list[int], length: int) -> None:
    _add_lists(counts, [1] * length)


def _add_lists(counts: list[int], other: list[int]) -> None:
    counts.extend([0] * (len(other) - len(counts)))
    for position, count in enumerate(other):
        counts[position] += count
