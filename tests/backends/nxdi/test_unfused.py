"""Unfused speculation: every draft call, every scored input, every recorded sequence."""

from __future__ import annotations

from functools import cache

import nxdi_golden as golden
import pytest

from neuron_spec.backends.reference.nxdi import Unfused, UnfusedRun, generate_unfused

RUNS = range(9)


def unfused(num_assistant_tokens: int) -> Unfused:
    return Unfused(
        golden.load_target(),
        golden.load_draft("draft", "model"),
        golden.buckets(),
        num_assistant_tokens=num_assistant_tokens,
    )


@cache
def emulated(run: int) -> UnfusedRun:
    data = golden.recorded("vanilla_unfused")["runs"][run]
    return generate_unfused(
        unfused(data["num_assistant_tokens"]),
        data["prompt"],
        max_length=data["max_length"],
        eos_token_ids=[data["eos_token_id"]],
    )


@pytest.mark.parametrize("run", RUNS)
def test_sequence(run: int) -> None:
    assert (
        list(emulated(run).sequence) == golden.recorded("vanilla_unfused")["runs"][run]["sequence"]
    )


@pytest.mark.parametrize("run", RUNS)
def test_every_target_step(run: int) -> None:
    expected = golden.recorded("vanilla_unfused")["runs"][run]["target_steps"]
    for step, data in zip(emulated(run).steps, expected, strict=True):
        assert list(step.inputs) == data["input_ids"]
        assert list(range(step.position, step.position + 5)) == data["position_ids"]
        assert step.position == data["attention_mask_sum"]
        assert list(step.target_tokens) == data["target_tokens"]


@pytest.mark.parametrize("run", RUNS)
def test_every_draft_call(run: int) -> None:
    expected = golden.recorded("vanilla_unfused")["runs"][run]["draft_calls"]
    calls = [call for step in emulated(run).steps for call in step.calls]
    for call, data in zip(calls, expected, strict=True):
        is_prompt = data["kind"] == "context_encoding_model"
        assert call.token == (None if is_prompt else data["input"][0])
        assert call.position == (None if is_prompt else data["position"][0])
        assert call.output == data["token"]


def test_the_draft_stops_at_an_eos() -> None:
    """No recorded draft proposed one. What it proposed before is verified, the EOS is not."""
    prompt = golden.PROMPTS[0]
    free = generate_unfused(unfused(5), prompt, max_length=48).steps[0]
    proposals = [call.output for call in free.calls]  # 66, 59, 33, …
    stopped = generate_unfused(unfused(5), prompt, max_length=48, eos_token_ids=[proposals[2]])
    first = stopped.steps[0]
    assert [call.output for call in first.calls] == proposals[:3]
    assert first.inputs == (*free.inputs[:3], 0, 0)
    assert stopped.sequence[-1] == proposals[2] or proposals[2] not in stopped.sequence


def test_an_eos_ends_the_run_as_the_last_token_of_a_step() -> None:
    prompt = golden.PROMPTS[0]
    free = generate_unfused(unfused(4), prompt, max_length=48)
    last = free.steps[1].emitted[-1]
    found = generate_unfused(unfused(4), prompt, max_length=48, eos_token_ids=[last])
    assert len(found.steps) == 2 and found.sequence == free.sequence[: len(found.sequence)]


def test_no_more_than_the_limit_is_accepted() -> None:
    """The first token is not counted, so that the output is one longer than `max_length`."""
    prompt = [113, 86, 100]  # answered with 50 again and again, which survives the first step
    free = generate_unfused(unfused(4), prompt, max_length=48)
    assert free.steps[0].num_accepted == 3
    found = generate_unfused(unfused(4), prompt, max_length=5)
    assert found.steps[0].num_accepted == 1 and len(found.steps) == 1
    assert found.sequence == free.sequence[:6]
