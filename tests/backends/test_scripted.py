"""The scripted speculator keeps the promises of the seam."""

from __future__ import annotations

import pytest

from neuron_spec.backends.base import Speculator, StepResult
from neuron_spec.backends.scripted import DEFAULT_LIMITS, ScriptedSpeculator

REPLIES = {(1, 2): (7, 8, 9, 5), (3,): (30, 31, 32, 33, 34, 35)}


def test_the_example_of_its_docstring() -> None:
    speculator: Speculator = ScriptedSpeculator(REPLIES, accepted=[2, 0])
    assert speculator.limits == DEFAULT_LIMITS
    assert speculator.prefill(0, (1, 2)).token == 7
    assert speculator.step(4) == [StepResult(0, (8, 9, 5), 4, 2)]
    assert speculator.step(4) == [StepResult(0, (5,), 4, 0)]  # the reply's last token repeats


def test_acceptance_is_at_most_k() -> None:
    speculator = ScriptedSpeculator(REPLIES, accepted=[4])
    speculator.prefill(0, [3])
    assert speculator.step(2) == [StepResult(0, (31, 32, 33), 2, 2)]
    assert speculator.step(0) == [StepResult(0, (34,), 0, 0)]


def test_slots_run_on_their_own_and_are_given_back() -> None:
    speculator = ScriptedSpeculator(REPLIES, accepted=[0, 1])
    assert speculator.step(4) == []
    speculator.prefill(1, [3])
    speculator.prefill(0, [1, 2])
    results = speculator.step(4)
    assert results == [StepResult(0, (8,), 4, 0), StepResult(1, (31, 32), 4, 1)]
    speculator.release(0)
    speculator.release(0)  # what is free stays free
    assert [result.slot for result in speculator.step(4)] == [1]
    assert speculator.prefill(0, [3]).token == 30


@pytest.mark.parametrize("slot", [-1, 0, 2])
def test_a_slot_that_is_not_free(slot: int) -> None:
    speculator = ScriptedSpeculator(REPLIES)
    speculator.prefill(0, [3])
    with pytest.raises(ValueError, match=f"slot {slot} is not free"):
        speculator.prefill(slot, [3])


def test_a_prompt_with_a_part_of_its_reply_is_continued() -> None:
    speculator = ScriptedSpeculator(REPLIES)
    assert speculator.prefill(0, (1, 2, 7, 8)).token == 9
    assert speculator.prefill(1, (3, 30)).token == 31


@pytest.mark.parametrize("prompt", [(), (4,), (1, 2, 8), (3, 30, 32)])
def test_a_prompt_that_is_not_in_the_table(prompt: tuple[int, ...]) -> None:
    speculator = ScriptedSpeculator(REPLIES)
    with pytest.raises(ValueError, match="no reply is scripted"):
        speculator.prefill(0, prompt)
    assert speculator.prefill(0, [3]).token == 30  # the slot stayed free
