"""The decode loop, driven by a scripted speculator: no weights, every case exact."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import WordTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import Event, FailEvent, FinishEvent, TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.errors import RequestError

EOS = 2
REPLY = (10, 11, 12, 13, 14, 15, 16, 17, 18, 19)


class WatchedSpeculator(ScriptedSpeculator):
    """Notes which slots are taken, and what was called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.taken: set[int] = set()
        self.calls: list[str] = []

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        assert slot not in self.taken
        self.taken.add(slot)
        self.calls.append(f"prefill {slot}")
        return super().prefill(slot, prompt_ids, decoding)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        self.calls.append(f"step {num_draft_tokens}")
        return super().step(num_draft_tokens)

    def release(self, slot: int) -> None:
        self.taken.discard(slot)
        super().release(slot)


def limits(**changes: int) -> Limits:
    values = {"batch_size": 2, "max_prompt_tokens": 64, "max_total_tokens": 128}
    return Limits(**{**values, "num_draft_tokens": 4, **changes})


def make(
    replies: dict[tuple[int, ...], Sequence[int]],
    accepted: Sequence[int] = (0,),
    *,
    k: int = 4,
    **changes: int,
) -> tuple[DecodeLoop, WatchedSpeculator]:
    speculator = WatchedSpeculator(replies, accepted=accepted, limits=limits(**changes))
    return DecodeLoop(
        speculator, WordTokenizer().decode, draft_length=DraftLength.constant(k)
    ), speculator


def request(*prompt: int, **fields: Any) -> Request:
    return Request(prompt, stop_token_ids=frozenset({EOS}), **fields)


def tokens(events: Sequence[Event], request_id: int = 1) -> tuple[int, ...]:
    found = (e for e in events if isinstance(e, TokenEvent) and e.request_id == request_id)
    return tuple(event.token_id for event in found)


def finish(events: Sequence[Event], request_id: int = 1) -> FinishEvent:
    (found,) = (e for e in events if isinstance(e, FinishEvent) and e.request_id == request_id)
    return found


def text(events: Sequence[Event], request_id: int = 1) -> str:
    return "".join(event.text for event in events if event.request_id == request_id)


@pytest.mark.parametrize("accepted", [[0], [4], [1, 0, 3], [2, 4, 1], [3, 3, 0, 0, 4]])
@pytest.mark.parametrize("reply", [(*REPLY, 20, 21, 22), (*REPLY[:5], EOS), (EOS,)])
@pytest.mark.parametrize("limit", range(13))
def test_as_many_tokens_as_asked_and_not_one_more(
    limit: int, reply: tuple[int, ...], accepted: list[int]
) -> None:
    loop, speculator = make({(1,): reply}, accepted)
    loop.submit(request(1, max_new_tokens=limit))
    events = list(loop.run())
    assert tokens(events) == reply[:limit]
    is_stopped = EOS in reply[:limit]
    assert finish(events).reason == ("stop" if is_stopped else "length")
    assert speculator.taken == set()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_request_gets_its_own_reply_whatever_runs_beside(data: st.DataObject) -> None:
    """More requests than slots, of all lengths, with any script of accepted counts."""
    num_requests = data.draw(st.integers(1, 7))
    replies, wanted = {}, []
    for number in range(num_requests):
        length, limit = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 12))
        reply = (*(100 * number + 50 + index for index in range(length)), EOS)
        replies[(number + 3,)] = reply
        wanted.append((limit, reply))
    accepted = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    k, batch_size = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 3))
    loop, speculator = make(replies, accepted, k=k, batch_size=batch_size)
    for number, (limit, _) in enumerate(wanted):
        loop.submit(request(number + 3, max_new_tokens=limit))
    events = list(loop.run())
    for request_id, (limit, reply) in enumerate(wanted, start=1):
        assert tokens(events, request_id) == reply[:limit]
        assert text(events, request_id) == "".join(f"{t} " for t in reply[:limit] if t != EOS)
    assert loop.is_idle
    assert speculator.taken == set()


def test_an_end_token_inside_an_accepted_block_cuts_there() -> None:
    loop, _ = make({(1,): (10, 11, EOS, 13, 14, 15)}, [4])
    loop.submit(request(1))
    events = list(loop.run())
    assert tokens(events) == (10, 11, EOS)
    assert text(events) == "10 11 "
    assert finish(events).reason == "stop"


def test_a_stop_string_inside_an_accepted_block_cuts_there() -> None:
    loop, _ = make({(1,): REPLY}, [4])
    loop.submit(request(1, stop=("12 1",)))
    events = list(loop.run())
    assert tokens(events) == (10, 11, 12, 13)  # the token that completed it is counted
    assert text(events) == "10 11 "
    assert finish(events).reason == "stop"


def test_text_that_was_held_back_comes_with_the_end() -> None:
    loop, _ = make({(1,): REPLY}, [0])
    loop.submit(request(1, stop=("11 x",), max_new_tokens=2))
    events = list(loop.run())
    assert [event.text for event in events] == ["10 ", "", "11 "]
    assert finish(events).reason == "length"


def test_a_stop_string_in_what_is_flushed_at_the_limit_is_the_reason() -> None:
    speculator = ScriptedSpeculator({(1,): REPLY})
    loop = DecodeLoop(
        speculator, lambda tokens: "a\ufffd" * len(tokens), draft_length=DraftLength.constant(4)
    )
    loop.submit(request(1, stop=("\ufffd",), max_new_tokens=1))
    events = list(loop.run())
    assert (text(events), finish(events).reason) == ("a", "stop")


def test_origins_tell_accepted_corrected_bonus_and_plain() -> None:
    loop, _ = make({(1,): REPLY}, [2, 4, 0])
    loop.submit(request(1, max_new_tokens=10))
    origins = [event.origin for event in loop.run() if isinstance(event, TokenEvent)]
    first, second = ["accepted"] * 2 + ["corrected"], ["accepted"] * 4 + ["bonus"]
    assert origins == ["plain", *first, *second, "corrected"]


def test_without_drafts_every_token_is_plain() -> None:
    loop, speculator = make({(1,): REPLY}, [4], k=0)
    loop.submit(request(1, max_new_tokens=4))
    events = list(loop.run())
    assert [e.origin for e in events if isinstance(e, TokenEvent)] == ["plain"] * 4
    assert set(speculator.calls) == {"prefill 0", "step 0"}


def test_counts_are_of_whole_steps() -> None:
    loop, _ = make({(1,): REPLY}, [2, 0, 4])
    loop.submit(request(1, max_new_tokens=7))  # the third step is cut after two of its five
    counts = finish(list(loop.run())).acceptance
    assert (counts.num_steps, counts.num_drafted, counts.num_accepted) == (3, 12, 6)
    assert counts.accepted_by_position == [2, 2, 1, 1]
    assert counts.drafted_by_position == [3, 3, 3, 3]


@pytest.mark.parametrize("accepted", [[0], [4], [1, 3]])
@pytest.mark.parametrize("gap", range(7))
def test_prompts_that_end_just_before_the_longest_total(gap: int, accepted: list[int]) -> None:
    prompt = tuple(range(3, 23 - gap))
    loop, speculator = make({prompt: REPLY}, accepted, max_prompt_tokens=20, max_total_tokens=20)
    loop.submit(request(*prompt))
    events = list(loop.run())
    assert tokens(events) == REPLY[:gap]
    assert finish(events).reason == "length"
    assert ("prefill 0" in speculator.calls) == (gap > 0)


def test_an_answer_may_not_pass_the_total_whatever_is_asked() -> None:
    loop, _ = make({(1, 3): REPLY}, [4], max_total_tokens=8, max_prompt_tokens=8)
    loop.submit(request(1, 3, max_new_tokens=100))
    assert tokens(list(loop.run())) == REPLY[:6]


def test_requests_join_in_order_and_take_the_slots_that_become_free() -> None:
    replies = {(number,): REPLY for number in (3, 4, 5)}
    loop, speculator = make(replies, [0])
    lengths = (3, 2, 2)
    for number, length in zip((3, 4, 5), lengths, strict=True):
        loop.submit(request(number, max_new_tokens=length))
    events = list(loop.run())
    steps = ["prefill 0", "prefill 1", "step 4", "prefill 1", "step 4"]
    assert speculator.calls == steps
    ends = [event.request_id for event in events if isinstance(event, FinishEvent)]
    assert ends == [2, 1, 3]


def test_a_request_that_ends_with_its_first_token_leaves_its_slot_in_the_same_round() -> None:
    replies = {(3,): (EOS,), (4,): (EOS,), (5,): REPLY}
    loop, speculator = make(replies, batch_size=1)
    for number in (3, 4, 5):
        loop.submit(request(number, max_new_tokens=2))
    events = loop.advance() + loop.advance()
    assert [e.request_id for e in events if isinstance(e, FinishEvent)] == [1, 2, 3]
    assert speculator.calls == ["prefill 0"] * 3 + ["step 4"]


def test_first_tokens_are_told_before_the_step_and_steps_are_not_starved() -> None:
    replies = {(number,): REPLY for number in range(3, 9)}
    loop, speculator = make(replies)
    for number in range(3, 9):
        loop.submit(request(number, max_new_tokens=2))
    assert [event.request_id for event in loop.advance()] == [1, 2]
    assert "step 4" not in speculator.calls
    assert {event.request_id for event in loop.advance()} == {1, 2}
    assert speculator.calls.count("step 4") == 1
    while not loop.is_idle:
        loop.advance()
    assert speculator.calls == ["prefill 0", "prefill 1", "step 4"] * 3


def test_what_is_cancelled_between_its_first_token_and_the_step_makes_none() -> None:
    loop, speculator = make({(3,): REPLY, (4,): REPLY}, batch_size=1)
    first = loop.submit(request(3, max_new_tokens=5))
    loop.advance()
    loop.cancel(first)
    loop.submit(request(4, max_new_tokens=1))
    assert [event.request_id for event in loop.advance()] == [2, 2]
    assert speculator.calls == ["prefill 0"] * 2


def test_events_of_a_request_come_in_order_and_end_once() -> None:
    loop, _ = make({(3,): REPLY, (4,): REPLY}, [1, 3])
    for number in (3, 4):
        loop.submit(request(number, max_new_tokens=6))
    events = list(loop.run())
    for request_id in (1, 2):
        own = [event for event in events if event.request_id == request_id]
        assert [type(event) for event in own] == [TokenEvent] * 6 + [FinishEvent]


def test_times_are_in_order() -> None:
    loop, _ = make({(3,): REPLY, (4,): REPLY}, batch_size=1)
    for number in (3, 4):
        loop.submit(request(number, max_new_tokens=3))
    events = list(loop.run())
    first, second = finish(events, 1).timing, finish(events, 2).timing
    for timing in (first, second):
        assert timing.ttft_s is not None
        assert 0 <= timing.queued_s <= timing.ttft_s <= timing.total_s
        tpot = timing.tpot_s(3)
        assert tpot == (timing.total_s - timing.ttft_s) / 2
        assert timing.tpot_s(1) is None
    assert second.queued_s > first.queued_s  # it waited for the only slot


def test_a_request_without_output_has_no_first_token_time() -> None:
    loop, _ = make({})
    loop.submit(request(1, max_new_tokens=0))
    timing = finish(list(loop.run())).timing
    assert (timing.ttft_s, timing.tpot_s(0)) == (None, None)


def test_cancel_while_waiting() -> None:
    loop, speculator = make({(3,): REPLY, (4,): REPLY}, batch_size=1)
    loop.submit(request(3, max_new_tokens=2))
    waiting = loop.submit(request(4))
    event = loop.cancel(waiting)
    assert event is not None
    assert (event.request_id, event.reason, event.text) == (waiting, "cancelled", "")
    assert {e.request_id for e in loop.run()} == {1}
    assert speculator.calls.count("prefill 0") == 1


def test_cancel_while_running_frees_the_slot_and_gives_what_was_held() -> None:
    loop, speculator = make({(3,): REPLY, (4,): REPLY}, [0], batch_size=1)
    running = loop.submit(request(3, stop=("11 x",)))
    loop.submit(request(4, max_new_tokens=1))
    loop.advance()
    loop.advance()
    event = loop.cancel(running)
    assert event is not None
    assert (event.reason, event.text) == ("cancelled", "11 ")
    assert event.acceptance.num_steps == 1
    assert speculator.taken == set()
    assert tokens(list(loop.run()), 2) == (10,)


def test_cancel_of_what_is_not_here_does_nothing() -> None:
    loop, _ = make({(3,): REPLY})
    done = loop.submit(request(3, max_new_tokens=1))
    list(loop.run())
    assert loop.cancel(done) is None
    assert loop.cancel(99) is None


def test_close_frees_everything() -> None:
    loop, speculator = make({(number,): REPLY for number in (3, 4, 5)})
    for number in (3, 4, 5):
        loop.submit(request(number))
    loop.advance()
    assert speculator.taken == {0, 1}
    loop.close()
    assert speculator.taken == set()
    assert loop.is_idle
    assert loop.advance() == []


def test_a_prefill_that_fails_half_way_leaves_no_slot_taken() -> None:
    loop, speculator = make({})  # takes the slot, then has no reply for the prompt
    loop.submit(request(3))
    with pytest.raises(ValueError, match="no reply is scripted"):
        list(loop.run())
    assert speculator.taken == set()


def test_a_prefill_that_fails_ends_its_own_request_alone() -> None:
    loop, speculator = make({(3,): REPLY, (5,): REPLY})
    for number in (3, 4, 5):
        loop.submit(request(number, max_new_tokens=3))
    events = [event for _ in range(9) for event in loop.advance()]
    (failure,) = (event for event in events if isinstance(event, FailEvent))
    assert (failure.request_id, type(failure.error)) == (2, ValueError)
    ended = [event.request_id for event in events if isinstance(event, FinishEvent)]
    assert ended == [1, 3]
    assert loop.totals.finished == {"failed": 1, "length": 2}
    assert loop.is_idle
    assert speculator.taken == set()


def test_a_step_that_fails_ends_those_that_run_and_not_those_that_wait() -> None:
    class Failing(WatchedSpeculator):
        def step(self, num_draft_tokens: int) -> list[StepResult]:
            if len(self.calls) == 2:
                self.calls.append("failed step")
                raise RuntimeError("the device is gone")
            return super().step(num_draft_tokens)

    replies = {(number,): REPLY for number in (3, 4, 5)}
    speculator = Failing(replies, limits=limits())
    loop = DecodeLoop(speculator, WordTokenizer().decode, draft_length=DraftLength.constant(4))
    for number in (3, 4, 5):
        loop.submit(request(number, max_new_tokens=3))
    loop.advance()
    failed = [event.request_id for event in loop.advance() if isinstance(event, FailEvent)]
    assert failed == [1, 2]
    assert tokens(list(loop.run()), 3) == REPLY[:3]
    assert speculator.taken == set()


def test_totals_count_what_was_told() -> None:
    loop, _ = make({(3,): REPLY, (4, 5): REPLY}, [2, 0])
    loop.submit(request(3, max_new_tokens=7))
    loop.submit(request(4, 5, max_new_tokens=2))
    events = list(loop.run())
    totals = loop.totals
    assert totals.num_prompt_tokens == 3
    assert totals.num_output_tokens == len(tokens(events, 1) + tokens(events, 2)) == 9
    assert totals.finished == {"length": 2}
    steps = [finish(events, number).acceptance.num_steps for number in (1, 2)]
    assert totals.acceptance.num_steps == sum(steps)


def test_offsets_are_those_of_the_text() -> None:
    loop, _ = make({(1,): REPLY}, [2])
    loop.submit(request(1, max_new_tokens=6, stop=("11 x",)))
    events = [event for event in loop.run() if isinstance(event, TokenEvent)]
    assert [event.text_offset for event in events] == [0, 3, 6, 9, 12, 15]


def test_cancelling_at_random_never_loses_a_slot() -> None:
    chance = random.Random(0)
    replies = {(number,): tuple(range(50, 80)) for number in range(3, 40)}
    loop, speculator = make(replies, [0, 2, 4, 1], batch_size=3)
    alive: set[int] = set()
    for number in range(3, 40):
        alive.add(loop.submit(request(number, max_new_tokens=chance.randrange(12))))
        ended = {e.request_id for e in loop.advance() if isinstance(e, FinishEvent)}
        alive -= ended
        if alive and chance.random() < 0.5:
            gone = chance.choice(sorted(alive))
            assert loop.cancel(gone) is not None
            alive.discard(gone)
    ended = {e.request_id for e in loop.run() if isinstance(e, FinishEvent)}
    assert ended == alive
    assert speculator.taken == set()


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (Request(()), "prompt"),
        (Request(tuple(range(65))), "prompt"),
        (Request((1,), max_new_tokens=-1), "max_new_tokens"),
        (Request((1,), stop=("",)), "stop"),
        (Request((1,), stop=("x", "")), "stop"),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_the_field(bad: Request, field: str) -> None:
    loop, _ = make({(1,): REPLY})
    with pytest.raises(RequestError) as caught:
        loop.submit(bad)
    assert caught.value.field == field
    assert loop.is_idle
