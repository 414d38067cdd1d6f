"""Measuring in turn: what runs how often, and how figures are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from conftest import WordTokenizer

from neuron_spec.backends.base import Limits
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.bench.measure import OnOff, measure_on_off, total_acceptance
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine import Generation, Session
from neuron_spec.errors import RequestError

REPLIES = {(3,): tuple(range(30, 50)), (4,): (40, 41, 42, 2)}
LIMITS = Limits(batch_size=1, max_prompt_tokens=16, max_total_tokens=16, num_draft_tokens=4)
ROWS = [WorkloadRow("3", "long"), WorkloadRow([4], "short")]


class WatchedSession(Session):
    """Notes what was generated: prompt, speculation, limit."""

    def __init__(self) -> None:
        speculator = ScriptedSpeculator(REPLIES, accepted=[1, 3], limits=LIMITS)
        super().__init__(speculator, WordTokenizer())
        self.calls: list[tuple[Any, bool, int]] = []
        self.total_s: list[float] = []

    def generate(self, prompt: Any, **options: Any) -> Generation:
        self.calls.append((prompt, options["speculate"], options["max_new_tokens"]))
        generation = super().generate(prompt, **options)
        if not self.total_s:
            return generation
        timing = replace(generation.timing, total_s=self.total_s.pop(0))
        return replace(generation, timing=timing)


def test_off_and_on_run_in_turn_after_a_short_warm_up() -> None:
    session = WatchedSession()
    measure_on_off(session, ROWS, max_new_tokens=6, repetitions=2)
    warm_up = [("3", False, 8), ("3", True, 8)]
    long, short = [("3", False, 6), ("3", True, 6)], [([4], False, 6), ([4], True, 6)]
    assert session.calls == [*warm_up, *long, *long, *short, *short]


def test_figures_of_a_row() -> None:
    long, short = measure_on_off(WatchedSession(), ROWS, max_new_tokens=6)
    assert (long.category, short.category) == ("long", "short")
    assert (len(long.on.token_ids), len(short.on.token_ids)) == (6, 4)
    assert long.is_identical
    assert short.is_identical
    assert long.off.acceptance.num_drafted == 0
    assert long.on.acceptance.num_drafted > 0
    data = long.as_dict()
    assert (data["num_prompt_tokens"], data["num_output_tokens"]) == (1, 6)
    assert data["ratio"] == data["on_tokens_per_s"] / data["off_tokens_per_s"]
    assert data["identical"] is True
    assert data["peer_tokens_per_s"] is None


def test_rates_are_medians_over_the_repetitions() -> None:
    session = WatchedSession()
    session.total_s = [9.0, 9.0, 1.0, 3.0, 2.0, 1.0, 6.0, 2.0]  # warm-up, then off and on in turn
    (result,) = measure_on_off(session, ROWS[:1], max_new_tokens=6, repetitions=3)
    assert result.off_tokens_per_s == 3.0  # of 6, 3, 1
    assert result.on_tokens_per_s == 3.0  # of 2, 6, 3
    assert result.ratio == 1.0


def test_different_tokens_are_told() -> None:
    (result,) = measure_on_off(WatchedSession(), ROWS[:1], max_new_tokens=6)
    other = replace(result.on, token_ids=(1, 2, 3))
    changed: OnOff = replace(result, on=other)
    assert not changed.is_identical
    assert changed.as_dict()["identical"] is False


def test_acceptance_over_all_rows() -> None:
    results = measure_on_off(WatchedSession(), ROWS, max_new_tokens=6)
    total = total_acceptance(results)
    assert total.num_steps == sum(result.on.acceptance.num_steps for result in results)
    assert total.num_drafted == 4 * total.num_steps
    assert total_acceptance([]).rate is None


def test_a_peer_gets_the_same_ids_and_its_own_rate() -> None:
    asked: list[tuple[tuple[int, ...], int]] = []

    def peer(prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        asked.append((tuple(prompt_ids), max_new_tokens))
        return [7] * max_new_tokens

    results = measure_on_off(WatchedSession(), ROWS, max_new_tokens=6, peer=peer)
    assert asked == [((3,), 8), ((3,), 6), ((4,), 6)]
    for result in results:
        assert result.peer_tokens_per_s is not None
        assert result.peer_tokens_per_s > 0


def test_progress_counts_prompts() -> None:
    seen: list[tuple[int, int]] = []
    measure_on_off(
        WatchedSession(),
        ROWS,
        max_new_tokens=2,
        progress=lambda label, done, total: seen.append((done, total)),
    )
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_a_prompt_without_room_for_output_is_refused() -> None:
    rows = [WorkloadRow([5] * 16, "full")]
    with pytest.raises(RequestError, match="no room for output") as caught:
        measure_on_off(WatchedSession(), rows, max_new_tokens=6)
    assert caught.value.field == "prompt"
