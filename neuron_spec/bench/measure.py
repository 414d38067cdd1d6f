"""Speculation on and off, in turn, in one run: only then is their ratio worth anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from neuron_spec.bench.peers import Peer
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine.session import Generation, Session
from neuron_spec.errors import RequestError
from neuron_spec.metrics import AcceptanceCounts


@dataclass(frozen=True)
class OnOff:
    """One prompt, generated in turn with speculation off and on.

    Attributes:
        off, on: the last repetition's generations.
        off_tokens_per_s, on_tokens_per_s: medians over the repetitions, prompt processing included.
        peer_tokens_per_s: the same for the peer, if one was measured.
    """

    category: str
    off: Generation
    on: Generation
    off_tokens_per_s: float
    on_tokens_per_s: float
    peer_tokens_per_s: float | None = None

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
            "peer_tokens_per_s": self.peer_tokens_per_s,
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
    peer: Peer | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> list[OnOff]:
    """Measure every row: off, on and the peer in turn; a short round of each warms up first."""
    _round(session, rows[0], 8, peer)
    results = []
    for index, row in enumerate(rows):
        progress("prompts", index, len(rows))
        rounds = [_round(session, row, max_new_tokens, peer) for _ in range(repetitions)]
        results.append(_summary(row, rounds))
    progress("prompts", len(rows), len(rows))
    return results


def total_acceptance(results: Sequence[OnOff]) -> AcceptanceCounts:
    """Acceptance over all rows together."""
    total = AcceptanceCounts()
    for result in results:
        total.add(result.on.acceptance)
    return total


@dataclass(frozen=True)
class _Round:
    off: Generation
    on: Generation
    peer_tokens_per_s: float | None


def _round(session: Session, row: WorkloadRow, max_new_tokens: int, peer: Peer | None) -> _Round:
    off = session.generate(row.prompt, max_new_tokens=max_new_tokens, speculate=False)
    if not off.token_ids:  # a rate of nothing has no ratio
        raise RequestError(
            "the prompt leaves no room for output",
            field="prompt",
            found=f"{off.num_prompt_tokens} tokens",
            mend="shorten the prompt, or compile with a larger shape.max_total_tokens",
        )
    on = session.generate(row.prompt, max_new_tokens=max_new_tokens, speculate=True)
    if peer is None:
        return _Round(off, on, None)
    prompt_ids = session.tokenizer.encode(row.prompt)
    start = time.perf_counter()
    num_tokens = len(peer(prompt_ids, max_new_tokens))
    return _Round(off, on, num_tokens / (time.perf_counter() - start))


def _summary(row: WorkloadRow, rounds: Sequence[_Round]) -> OnOff:
    peer = [entry.peer_tokens_per_s for entry in rounds if entry.peer_tokens_per_s is not None]
    return OnOff(
        category=row.category,
        off=rounds[-1].off,
        on=rounds[-1].on,
        off_tokens_per_s=median(_tokens_per_s(entry.off) for entry in rounds),
        on_tokens_per_s=median(_tokens_per_s(entry.on) for entry in rounds),
        peer_tokens_per_s=median(peer) if peer else None,
    )


def _tokens_per_s(generation: Generation) -> float:
    return len(generation.token_ids) / generation.timing.total_s
