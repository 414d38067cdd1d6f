"""Speculation on and off, in turn, in one run: only then is their ratio worth anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine.session import Generation, Session
from neuron_spec.metrics import AcceptanceCounts


@dataclass(frozen=True)
class OnOff:
    """One prompt, generated in turn with speculation off and on.

    Attributes:
        off, on: the last repetition's generations.
        off_tokens_per_s, on_tokens_per_s: medians over the repetitions, prompt processing included.
    """

    category: str
    off: Generation
    on: Generation
    off_tokens_per_s: float
    on_tokens_per_s: float

    @property
    def ratio(self) -> float:
        """How many times faster with speculation; below 1 it is slower."""
        return self.on_tokens_per_s / self.off_tokens_per_s

    @property
    def is_identical(self) -> bool:
        """The same tokens both ways."""
        return self.off.token_ids == self.on.token_ids

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "category": self.category,
            "num_prompt_tokens": self.on.num_prompt_tokens,
            "num_output_tokens": len(self.on.token_ids),
            "off_tokens_per_s": self.off_tokens_per_s,
            "on_tokens_per_s": self.on_tokens_per_s,
            "ratio": self.ratio,
            "identical": self.is_identical,
            "acceptance": self.on.acceptance.as_dict(),
        }


def measure_on_off(
    session: Session,
    rows: Sequence[WorkloadRow],
    *,
    max_new_tokens: int,
    repetitions: int = 1,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> list[OnOff]:
    """Measure every row, off and on in turn; one short generation each way warms up first."""
    for speculate in (False, True):
        session.generate(rows[0].prompt, max_new_tokens=8, speculate=speculate)
    results = []
    for index, row in enumerate(rows):
        progress("prompts", index, len(rows))
        pairs = [_pair(session, row, max_new_tokens) for _ in range(repetitions)]
        off, on = pairs[-1]
        speeds = [median(_tokens_per_s(pair[side]) for pair in pairs) for side in (0, 1)]
        results.append(OnOff(row.category, off, on, speeds[0], speeds[1]))
    progress("prompts", len(rows), len(rows))
    return results


def total_acceptance(results: Sequence[OnOff]) -> AcceptanceCounts:
    """Acceptance over all rows together."""
    total = AcceptanceCounts()
    for result in results:
        total.add(result.on.acceptance)
    return total


def _pair(session: Session, row: WorkloadRow, max_new_tokens: int) -> tuple[Generation, Generation]:
    off = session.generate(row.prompt, max_new_tokens=max_new_tokens, speculate=False)
    on = session.generate(row.prompt, max_new_tokens=max_new_tokens, speculate=True)
    return off, on


def _tokens_per_s(generation: Generation) -> float:
    return len(generation.token_ids) / generation.timing.total_s
