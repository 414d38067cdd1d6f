"""What a speculation step costs, by draft length and by how many requests run.

The seam is the step, so that the whole step is what can be measured on every backend; where a
backend tells drafting and verification apart, both parts are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_spec.errors import UserError
from neuron_spec.metrics.estimates import Estimate


@dataclass(frozen=True)
class StepCost:
    """One step of `concurrency` requests that drafts k tokens; seconds.

    Attributes:
        step_s: median of the whole step.
        draft_s, verify_s: medians of its parts: k draft passes, and the target over k + 1
            positions; None where the backend does both in one call.
    """

    concurrency: int
    num_draft_tokens: int
    step_s: Estimate
    draft_s: Estimate | None = None
    verify_s: Estimate | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        parts = {"step_s": self.step_s, "draft_s": self.draft_s, "verify_s": self.verify_s}
        return {
            "concurrency": self.concurrency,
            "num_draft_tokens": self.num_draft_tokens,
            "num_positions": self.num_draft_tokens + 1,
            **{name: part.as_dict() if part else None for name, part in parts.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepCost:
        """What `as_dict` wrote."""
        parts = (data.get(name) for name in ("step_s", "draft_s", "verify_s"))
        step, draft, verify = (Estimate(**part) if part else None for part in parts)
        if step is None:
            raise KeyError("step_s")
        return cls(data["concurrency"], data["num_draft_tokens"], step, draft, verify)


@dataclass(frozen=True)
class CostCurve:
    """Step costs over draft lengths and concurrencies.

    Raises:
        UserError: a concurrency lacks the plain step (k = 0), which all others are compared with,
            or not all concurrencies have the same draft lengths.
    """

    costs: tuple[StepCost, ...]

    def __post_init__(self) -> None:
        lengths = {c: sorted(self.at(c)) for c in self.concurrencies}
        if not lengths or any(k[0] != 0 or k != self.draft_lengths for k in lengths.values()):
            raise UserError(
                "not a cost curve",
                found=f"draft lengths by concurrency {lengths}",
                expected="the same draft lengths, 0 among them, at every concurrency",
                mend="measure again with `neuron-spec bench`",
            )

    @property
    def concurrencies(self) -> list[int]:
        """Numbers of running requests that were measured, rising."""
        return sorted({cost.concurrency for cost in self.costs})

    @property
    def draft_lengths(self) -> list[int]:
        """Draft lengths that were measured, rising from 0."""
        return sorted({cost.num_draft_tokens for cost in self.costs})

    def at(self, concurrency: int) -> dict[int, StepCost]:
        """Draft length -> cost, at a measured concurrency."""
        return {c.num_draft_tokens: c for c in self.costs if c.concurrency == concurrency}

    def step_s(self, concurrency: int, num_draft_tokens: int) -> float:
        """Seconds of a step, linear between measured concurrencies and constant beyond them."""
        measured = self.concurrencies
        inside = min(max(concurrency, measured[0]), measured[-1])
        below = max(c for c in measured if c <= inside)
        above = min(c for c in measured if c >= inside)
        low = self.at(below)[num_draft_tokens].step_s.value
        high = self.at(above)[num_draft_tokens].step_s.value
        share = (inside - below) / (above - below) if above > below else 0.0
        return low + share * (high - low)

    def as_list(self) -> list[dict[str, Any]]:
        """Plain data for JSON."""
        return [cost.as_dict() for cost in self.costs]

    @classmethod
    def from_list(cls, data: Sequence[Mapping[str, Any]]) -> CostCurve:
        """What `as_list` wrote."""
        return cls(tuple(map(StepCost.from_dict, data)))
