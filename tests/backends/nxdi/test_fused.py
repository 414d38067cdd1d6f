"""Fused speculation with a draft model, EAGLE and EAGLE-3: every recorded step and sequence."""

from __future__ import annotations

from functools import cache

import nxdi_golden as golden
import pytest
import torch

from neuron_spec.backends.reference.nxdi import FusedEagle, FusedRun, generate
from neuron_spec.backends.reference.nxdi.buffer import RollingBuffer
from neuron_spec.backends.reference.nxdi.graph import GREEDY_PARAMS, Inputs

RUNS = [(case, run) for case in golden.CASES for run in range(5)]


@cache
def emulated(case: str, run: int) -> FusedRun:
    data = golden.recorded(case)["runs"][run]
    return generate(
        golden.fused(case),
        data["prompt"],
        max_length=data["max_length"],
        eos_token_ids=[data["eos_token_id"]],
    )


@pytest.mark.parametrize(("case", "run"), RUNS)
def test_tokens_and_counts_of_every_step(case: str, run: int) -> None:
    data, found = golden.recorded(case)["runs"][run], emulated(case, run)
    assert list(found.sequence) == data["sequence"]
    assert len(found.steps) == len(data["steps"])
    for step, expected in zip(found.steps, data["steps"], strict=True):
        drafts = step.drafts[0].tolist()
        assert drafts[:4] == expected["draft_tokens"]
        if "extra_draft_token_not_verified" in expected:
            assert drafts[4] == expected["extra_draft_token_not_verified"]
        assert step.target_tokens[0].tolist() == expected["target_tokens"]
        accepted = step.accepted
        assert accepted.tokens[0].tolist() == expected["accepted_tokens_padded"]
        num_emitted = len(expected["emitted"])  # not cut at an EOS, other than the sequence
        assert accepted.tokens[0, :num_emitted].tolist() == expected["emitted"]
        assert accepted.next_tokens.tolist() == [expected["next_input_token"]]
        assert accepted.next_positions.tolist() == [expected["next_position"]]
        kept = accepted.next_positions[0] - expected["position"] - 1
        assert kept == expected["num_draft_accepted"]


@pytest.mark.parametrize(("case", "run"), RUNS)
def test_logits(case: str, run: int) -> None:
    data, expected = golden.recorded(case)["runs"][run], golden.tensors(case)
    found = emulated(case, run)
    golden.assert_close(found.begun.logits, expected[f"r{run}.cte.target_logits"])
    for index in range(data["logits_steps"]):
        step, key = found.steps[index], f"r{run}.s{index}"
        golden.assert_close(torch.cat(step.draft_logits, 1)[0], expected[f"{key}.draft_logits"])
        golden.assert_close(step.target_logits[0], expected[f"{key}.target_logits"])


@pytest.mark.parametrize("case", ["eagle1", "eagle1_norm", "eagle3"])
def test_cache_of_the_head_and_the_feature_for_the_next_step(case: str) -> None:
    data, expected = golden.recorded(case)["runs"][0], golden.tensors(case)
    graph = golden.fused(case)
    begun = graph.encode(0, data["prompt"], GREEDY_PARAMS)
    length = len(data["prompt"])
    check_state(graph, expected, "r0.cte", length)
    step = graph.step(Inputs.of([begun.token], [length]))
    check_state(graph, expected, "r0.s0", int(step.accepted.next_positions[0]))


def check_state(graph: FusedEagle, expected: dict[str, torch.Tensor], key: str, end: int) -> None:
    feature = graph.features.get(torch.tensor([end]))[0, 0]
    golden.assert_close(feature, expected[f"{key}.next_hidden"])
    cache = graph.head.cache
    for tensors, name in ((cache.keys, "k"), (cache.values, "v")):
        recorded = expected[f"{key}.draft_{name}_cache"]
        count = recorded.shape[1]
        golden.assert_close(tensors[0][0, :, :count], recorded)


def test_the_buffer_of_features_wraps() -> None:
    """Ten places with speculation_length 5; a place that was never written holds zeros."""
    buffer = RollingBuffer(2, 10)
    with pytest.raises(ValueError, match="before the first step"):
        buffer.get(torch.tensor([0]))
    buffer.put(torch.tensor([1]), torch.tensor([13]), torch.ones(1, 4))
    assert buffer.get(torch.tensor([3, 23]))[:, 0].tolist() == [[0.0] * 4, [1.0] * 4]
    graph = golden.fused("eagle1")
    graph.encode(0, golden.PROMPTS[0], GREEDY_PARAMS)
    first = graph.features.get(torch.tensor([5]))
    assert torch.equal(graph.features.get(torch.tensor([15])), first)


@pytest.mark.parametrize("case", ["eagle1", "fused_draft"])
def test_two_rows_of_unequal_prompts(case: str) -> None:
    data = golden.recorded(f"{case}_batch2")
    graph = golden.fused(case, num_slots=2)
    for slot, prompt in enumerate(data["prompts"]):
        begun = graph.encode(slot, prompt, GREEDY_PARAMS)
        assert begun.token == data["tokens_including_context_encoding_token"][slot][0]
    for expected in data["steps"]:
        step = graph.step(Inputs.of(expected["input_token"], expected["position"]))
        assert step.drafts.tolist() == expected["draft_tokens"]
        assert step.target_tokens.tolist() == expected["target_tokens"]
        assert step.accepted.tokens.tolist() == expected["accepted_tokens_padded"]
        assert step.accepted.next_positions.tolist() == expected["next_position"]
