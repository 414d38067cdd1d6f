"""Under load: how many run at a time, in which turns, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conftest import WordTokenizer

from neuron_spec.backends.base import Limits, StepResult
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.bench.load import LoadSettings, Rounds, measure_loads, run_closed, ways_of
from neuron_spec.bench.rounds import REQUESTS_PER_SLOT, passes_at
from neuron_spec.bench.run import decode_share, run_of
from neuron_spec.bench.steps import measure_step_costs
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine import Session
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.errors import RequestError, UserError

LIMITS = Limits(batch_size=4, max_prompt_tokens=16, max_total_tokens=24, num_draft_tokens=3)
REPLIES = {(n,): tuple(range(10 * n, 10 * n + 9)) for n in (3, 4, 5, 6, 7)}
ROWS = [WorkloadRow(str(n), "odd" if n % 2 else "even") for n in (3, 4, 5, 6, 7)]


class Watched(ScriptedSpeculator):
    """Notes how many run in each step and what k was."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        super().__init__(REPLIES, accepted=[1, 3, 0], limits=limits)
        self.steps: list[tuple[int, int]] = []

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        results = super().step(num_draft_tokens)
        self.steps.append((len(results), num_draft_tokens))
        # Prompts are one token long here.
        rows = self._running.values()
        assert all(1 + row.position <= self.limits.max_total_tokens for row in rows)
        return results


def measured(settings: LoadSettings, **draft_length: Any) -> tuple[Rounds, Watched]:
    speculator = Watched()
    session = Session(speculator, WordTokenizer(), **draft_length)
    rounds = measure_loads(session, ROWS, settings)
    assert speculator._running == {}
    return rounds, speculator


def test_so_many_requests_are_in_flight_and_no_more() -> None:
    for concurrency in (1, 2, 4):
        speculator = Watched()
        session = Session(speculator, WordTokenizer())
        requests = [session.request(row.prompt, max_new_tokens=9) for row in ROWS]
        seconds, served = run_closed(session, requests, DraftLength.constant(2), concurrency)
        assert seconds > 0
        assert [request.row for request in served] == [0, 1, 2, 3, 4]
        assert [request.token_ids[:2] for request in served][:2] == [(30, 31), (40, 41)]
        assert max(running for running, _ in speculator.steps) == concurrency
        assert {k for _, k in speculator.steps} == {2}
        assert all(len(request.token_ids) == 9 for request in served)
        assert served[0].text == "30 31 32 33 34 35 36 37 38 "
        assert "".join(text for text, _ in served[0].pieces) == served[0].text
        assert {origin for _, origin in served[0].pieces} <= {
            "plain",
            "accepted",
            "corrected",
            "bonus",
        }


def test_rows_run_again_where_they_are_few() -> None:
    """Else the last requests of a round would run alone for most of its time."""
    rounds, speculator = measured(LoadSettings((1, 4), 1, {"max_new_tokens": 9}))
    counts = {r.concurrency: len(r.requests) for r in rounds.rounds}
    assert counts == {1: 5, 4: 20}  # 4 x 4 requests, in whole passes over 5 rows
    for r in rounds.rounds:
        assert len({request.token_ids for request in r.requests}) == 5
        assert [request.row for request in r.requests] == sorted(
            row for row in range(5) for _ in range(counts[r.concurrency] // 5)
        )
    full = sum(running == 4 for running, _ in speculator.steps)
    assert full > 0.8 * sum(running > 1 for running, _ in speculator.steps)


def test_passes_count_every_row_the_same() -> None:
    for concurrency, rows, passes in ((1, 1, 1), (1, 9, 1), (2, 8, 1), (2, 7, 2), (16, 16, 4)):
        assert passes_at(concurrency, rows) == passes
    for concurrency in range(2, 20):
        for rows in range(1, 100):
            total = rows * passes_at(concurrency, rows)
            assert max(rows, REQUESTS_PER_SLOT * concurrency) <= total
            assert total < REQUESTS_PER_SLOT * concurrency + rows


def test_the_ways_rotate_within_every_repetition() -> None:
    settings = LoadSettings((1, 2), 2, {"max_new_tokens": 4})
    rounds, _ = measured(settings)
    order = [(r.repetition, r.concurrency, r.way) for r in rounds.rounds]
    assert order == [
        (0, 1, "off"), (0, 1, "on"), (0, 2, "off"), (0, 2, "on"),
        (1, 1, "on"), (1, 1, "off"), (1, 2, "on"), (1, 2, "off"),
    ]  # fmt: skip
    assert rounds.warm_up_s > 0
    (first, second) = rounds.of("on", 2)
    assert (first.repetition, second.repetition) == (0, 1)
    assert first.tokens_per_s == sum(len(r.token_ids) for r in first.requests) / first.wall_s
    off = rounds.of("off", 1)[0]
    assert all(request.acceptance.num_drafted == 0 for request in off.requests)
    assert all(request.acceptance.num_drafted > 0 for request in first.requests)


def test_an_artifacts_own_bands_are_a_third_way() -> None:
    speculator = Watched()
    assert list(ways_of(Session(speculator, WordTokenizer()))) == ["off", "on"]
    bands = DraftLength(((1, 3), (2, 0)))
    rounds, speculator = measured(
        LoadSettings((1, 2), 1, {"max_new_tokens": 4}), draft_length=bands
    )
    assert {r.way for r in rounds.rounds} == {"off", "on", "by-load"}
    single = rounds.of("by-load", 1)[0]
    assert single.requests[0].acceptance.num_drafted > 0
    pair = rounds.of("by-load", 2)[0]
    assert pair.requests[0].acceptance.num_drafted == 0


def test_more_requests_than_slots_are_refused() -> None:
    with pytest.raises(UserError, match="slots") as caught:
        measured(LoadSettings((1, 5), 1, {"max_new_tokens": 4}))
    assert "batch_size" in str(caught.value)


def test_a_prompt_without_room_is_refused_before_anything_runs() -> None:
    session = Session(Watched(), WordTokenizer())
    with pytest.raises(RequestError, match="no room for output"):
        measure_loads(session, ROWS, LoadSettings((1,), 1, {"max_new_tokens": 0}))


def test_a_peer_is_asked_in_every_repetition() -> None:
    asked: list[tuple[Any, int]] = []

    def peer(prompt_ids: Any, max_new_tokens: int) -> list[int]:
        asked.append((tuple(prompt_ids), max_new_tokens))
        return [1] * max_new_tokens

    session = Session(Watched(), WordTokenizer())
    settings = LoadSettings((1,), 2, {"max_new_tokens": 4})
    rounds = measure_loads(session, ROWS[:2], settings, peer=peer)
    assert asked == [((3,), 4), ((4,), 4)] * 2
    assert {row: len(rates) for row, rates in rounds.peer_tokens_per_s.items()} == {0: 2, 1: 2}


def test_step_costs_cover_every_draft_length_in_turn() -> None:
    speculator = Watched()
    session = Session(speculator, WordTokenizer())
    curve = measure_step_costs(session, ROWS, (1, 3), num_turns=4)
    assert speculator._running == {}
    assert speculator.steps[:8] == [(1, k) for k in (0, 1, 2, 3)] * 2
    assert speculator.steps[-4:] == [(3, k) for k in (0, 1, 2, 3)]
    assert (curve.concurrencies, curve.draft_lengths) == ([1, 3], [0, 1, 2, 3])
    cost = curve.at(3)[2]
    assert (cost.step_s.num_samples, cost.draft_s, cost.verify_s) == (4, None, None)
    assert cost.step_s.value > 0


ALWAYS = replace(LIMITS, always_drafts=True)
ALONE = replace(LIMITS, num_draft_tokens=0)
SHORT = LoadSettings((1, 2), 2, {"max_new_tokens": 4})


def test_off_that_takes_as_long_is_not_measured() -> None:
    """A fused graph asked for k = 0 drafts all the same: its time is no baseline."""
    speculator = Watched(ALWAYS)
    session = Session(speculator, WordTokenizer())
    assert list(ways_of(session)) == ["on"]
    rounds = measure_loads(session, ROWS, SHORT)
    assert rounds.ways == ["on"] and {k for _, k in speculator.steps} == {3}
    (note,) = rounds.notes
    assert "off is not measured" in note and "--off" in note
    run = run_of({"draft": {}}, ROWS, rounds, None)
    assert run["speed_ups"] == [] and decode_share(run) is None
    assert {prompt["ratio"] for prompt in run["prompts"]} == {None}
    assert {kind["speed_up"] for kind in run["kinds"]} == {None}
    with pytest.raises(UserError, match="no step without drafts can be timed"):
        measure_step_costs(session, ROWS, (1,))


def test_off_is_another_artifact() -> None:
    on, off = Watched(ALWAYS), Watched(ALONE)
    sessions = Session(on, WordTokenizer()), Session(off, WordTokenizer())
    rounds = measure_loads(sessions[0], ROWS, SHORT, off=sessions[1])
    assert rounds.ways == ["off", "on"] and rounds.notes == []
    assert ({k for _, k in on.steps}, {k for _, k in off.steps}) == ({3}, {0})
    assert len(run_of({"draft": {}}, ROWS, rounds, None)["speed_ups"]) == 2
    on.steps.clear()
    off.steps.clear()
    curve = measure_step_costs(sessions[0], ROWS, (1, 3), off=sessions[1], num_turns=4)
    assert curve.draft_lengths == [0, 3]
    assert ({k for _, k in on.steps}, {k for _, k in off.steps}) == ({3}, {0})
    assert len(on.steps) == len(off.steps)
    assert on._running == off._running == {}


def test_an_artifact_that_can_switch_may_be_compared_with_another() -> None:
    on, off = Watched(), Watched(ALONE)
    sessions = Session(on, WordTokenizer()), Session(off, WordTokenizer())
    curve = measure_step_costs(sessions[0], ROWS, (1,), off=sessions[1], num_turns=2)
    assert curve.draft_lengths == [0, 1, 2, 3]
    assert ({k for _, k in on.steps}, {k for _, k in off.steps}) == ({1, 2, 3}, {0})


@pytest.mark.parametrize(
    ("limits", "words"),
    [(replace(ALONE, batch_size=1), "slots"), (replace(ALONE, max_total_tokens=4), "same lengths")],
)
def test_the_other_artifact_holds_as_much(limits: Limits, words: str) -> None:
    sessions = Session(Watched(ALWAYS), WordTokenizer()), Session(Watched(limits), WordTokenizer())
    with pytest.raises(UserError, match=words):
        measure_loads(sessions[0], ROWS, SHORT, off=sessions[1])


def test_sequences_that_are_full_begin_anew() -> None:
    speculator = Watched(Limits(2, 16, 12, 3))
    session = Session(speculator, WordTokenizer())
    long = [WorkloadRow([3], "x")]
    measure_step_costs(
        session, long, (1,), num_turns=30
    )  # 32 turns of up to 10 tokens in 12 places
    assert speculator._running == {}
