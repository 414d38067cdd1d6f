"""Sessions: several prompts, streams, and slots that are free again whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import WordTokenizer

from neuron_spec.backends.base import Limits, StepResult
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine import FinishEvent, Session, TokenEvent
from neuron_spec.errors import RequestError

REPLIES = {(number,): (number * 10, number * 10 + 1, number * 10 + 2, 2) for number in range(3, 9)}
LIMITS = Limits(batch_size=2, max_prompt_tokens=8, max_total_tokens=16, num_draft_tokens=3)


class Speculator(ScriptedSpeculator):
    """Notes the draft lengths it was asked for."""

    def __init__(self, accepted: Sequence[int] = (1, 0, 3)) -> None:
        super().__init__(REPLIES, accepted=accepted, limits=LIMITS)
        self.draft_lengths: set[int] = set()

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        self.draft_lengths.add(num_draft_tokens)
        return super().step(num_draft_tokens)

    @property
    def num_taken(self) -> int:
        return len(self._running)


@pytest.fixture
def session() -> Session:
    return Session(Speculator(), WordTokenizer())


def test_generations_come_in_the_order_of_the_prompts(session: Session) -> None:
    prompts = ["8", [3], [{"role": "user", "content": "5"}], "4", "6"]
    generations = session.generate_many(prompts)
    assert [g.token_ids[0] for g in generations] == [80, 30, 50, 40, 60]
    assert [g.text for g in generations] == [f"{n}0 {n}1 {n}2 " for n in (8, 3, 5, 4, 6)]


def test_no_prompts_no_generations(session: Session) -> None:
    assert session.generate_many([]) == []


def test_the_same_prompt_twice_is_generated_twice(session: Session) -> None:
    first, second = session.generate_many(["3", "3"])
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 2}, {"stop": "31"}, {"stop": ["1 "]}])
def test_a_stream_is_the_generation_in_pieces(session: Session, options: dict[str, Any]) -> None:
    whole = session.generate("3", **options)
    *pieces, last = session.stream("3", **options)
    assert isinstance(last, FinishEvent)
    assert "".join(event.text for event in (*pieces, last)) == whole.text
    assert tuple(e.token_id for e in pieces if isinstance(e, TokenEvent)) == whole.token_ids
    assert last.reason == whole.finish_reason


def test_a_generation_tells_what_happened(session: Session) -> None:
    data = session.generate("3").as_dict()
    assert (data["num_prompt_tokens"], data["num_output_tokens"]) == (1, 4)
    assert data["finish_reason"] == "stop"
    assert data["acceptance"]["num_drafted_tokens"] == 6
    assert data["acceptance"]["num_accepted_tokens"] == 1
    assert 0 <= data["ttft_s"] <= data["total_s"]


def test_ignore_eos_goes_on(session: Session) -> None:
    assert session.generate("3", max_new_tokens=6, ignore_eos=True).token_ids[3:] == (2, 2, 2)


def test_without_speculation_nothing_is_drafted() -> None:
    speculator = Speculator()
    generation = Session(speculator, WordTokenizer()).generate("3", speculate=False)
    assert speculator.draft_lengths == {0}
    assert generation.token_ids == REPLIES[(3,)]
    assert generation.acceptance.num_drafted == 0
    Session(speculator, WordTokenizer()).generate("3")
    assert speculator.draft_lengths == {0, 3}


def test_a_consumer_that_stops_midway_leaves_the_slots_free() -> None:
    speculator = Speculator(accepted=[0])
    session = Session(speculator, WordTokenizer())
    for _ in range(5):
        stream = session.stream("3")
        next(stream)
        assert speculator.num_taken == 1
        stream.close()
        assert speculator.num_taken == 0
    assert session.generate("3").token_ids == REPLIES[(3,)]


def test_breaking_out_of_a_stream_is_enough(session: Session) -> None:
    for _ in session.stream("3"):
        break
    assert [g.token_ids[0] for g in session.generate_many(["3", "4"])] == [30, 40]


def test_a_failure_in_the_middle_leaves_the_slots_free() -> None:
    class Failing(Speculator):
        def step(self, num_draft_tokens: int) -> list[StepResult]:
            raise RuntimeError("the device is gone")

    speculator = Failing()
    session = Session(speculator, WordTokenizer())
    with pytest.raises(RuntimeError, match="the device is gone"):
        session.generate_many(["3", "4", "5"])
    assert speculator.num_taken == 0
    with pytest.raises(RuntimeError, match="the device is gone"):
        list(session.stream("3"))
    assert speculator.num_taken == 0


def test_one_bad_prompt_of_several_is_refused_before_anything_runs() -> None:
    speculator = Speculator()
    with pytest.raises(RequestError) as caught:
        Session(speculator, WordTokenizer()).generate_many(["3", [1] * 9])
    assert caught.value.field == "prompt"
    assert speculator.draft_lengths == set()


@pytest.mark.parametrize(
    ("options", "field"), [({"max_new_tokens": -1}, "max_new_tokens"), ({"stop": ""}, "stop")]
)
def test_bad_options_are_refused_with_their_names(
    session: Session, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        session.generate("3", **options)
    assert caught.value.field == field
