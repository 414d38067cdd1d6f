"""Sampled EAGLE, fed the recorded uniform numbers: probabilities, tests and tokens of every step.

With `dynamic` NxDI compares rounded sums with top_p 1, and the last bit of the logits decides
whether a row's last token stays. The logits here are equal to NxDI's to about 1e-6, not to the bit:
where a sum is that close to top_p, these tests let the recording decide, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import nxdi_golden as golden
import pytest
import torch
from torch import Tensor

from neuron_spec.backends.reference.nxdi import generate, sampler
from neuron_spec.backends.reference.nxdi.acceptance import draft_probs
from neuron_spec.backends.reference.nxdi.chance import Chance
from neuron_spec.backends.reference.nxdi.eagle import FusedEagle
from neuron_spec.backends.reference.nxdi.graph import Inputs, Step
from neuron_spec.backends.reference.nxdi.loop import must_stop
from neuron_spec.backends.reference.nxdi.sampler import Sampling

CASES = ("eagle1_sample", "eagle1_sample_dynamic")
RUNS = [(case, run) for case in CASES for run in range(3)]
ROUNDING = 1e-6
Decide = Callable[[Tensor], Tensor]


def sampling_of(case: str) -> Sampling:
    config = golden.recorded(case)["neuron_config"]["on_device_sampling_config"]
    names = ("do_sample", "dynamic", "deterministic", "global_topk")
    return Sampling(**{name: config[name] for name in names})


def params_of(case: str) -> Tensor:
    values = golden.recorded(case)["sampling"]
    return torch.tensor([values[name] for name in ("top_k", "top_p", "temperature")])


def ties(values: Tensor, top_p: Tensor) -> Tensor:
    """Possible tokens whose sum is as good as equal to top_p."""
    probs = values.softmax(dim=-1)
    return ((probs.cumsum(dim=-1) - top_p).abs() < ROUNDING) & (probs > 0)


def deciding(dropped: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """`beyond_top_p` with rows [rows, n] of bool for the tokens that are as good as equal."""
    original = sampler.beyond_top_p

    def beyond_top_p(values: Tensor, top_p: Tensor) -> Tensor:
        decision = dropped[..., None].expand_as(values)
        return torch.where(ties(values, top_p), decision, original(values, top_p))

    return beyond_top_p


def variants(graph: FusedEagle, inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    """The step as it comes, then with every decision about its ties."""
    yield graph.step(inputs)
    for bits in product([False, True], repeat=5):
        with monkeypatch.context() as patch:
            patch.setattr(sampler, "beyond_top_p", deciding(torch.tensor([bits])))
            yield graph.step(inputs)


def is_recorded(step: Step, expected: dict[str, Any]) -> bool:
    sampled, accepted = step.sampled, step.accepted
    assert sampled is not None and step.drafts[0].tolist() == expected["draft_tokens"]
    probs = draft_probs(step.drafts, sampled.ids, sampled.probs)[0]
    found = {
        "resampled_target_tokens": sampled.resampled[0].tolist(),
        "num_accepted_by_mask": int(sampled.num_accepted_by_test),
        "selected_tokens_padded_with_pad_id": sampled.selected[0].tolist(),
        "accepted_tokens_padded": accepted.tokens[0].tolist(),
        "emitted": [token for token in accepted.tokens[0].tolist() if token >= 0],
        "next_position": int(accepted.next_positions),
        "next_input_token": int(accepted.next_tokens),
    }
    recorded_probs = torch.tensor(expected["target_prob_of_draft"])
    close = torch.allclose(probs, recorded_probs, atol=golden.TOLERANCE, rtol=0)
    return close and all(expected[key] == value for key, value in found.items())


@pytest.mark.parametrize(("case", "run"), RUNS)
def test_tokens_and_counts_of_every_step(
    case: str, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, params = golden.recorded(case)["runs"][run], params_of(case)
    numbers = list(data["context_encoding"]["uniform_target_then_unused_draft"])
    graph = golden.fused("eagle1", chance=Chance(sampling_of(case), lambda shape: draw(shape)))
    draw = golden.Replay(numbers)
    begun = graph.encode(0, data["prompt"], params)
    draw.assert_used_up()
    assert begun.token == data["context_encoding"]["out_token"]
    sequence, counter = [*data["prompt"], begun.token], len(data["prompt"])
    for expected in data["steps"]:
        assert not must_stop(counter, data["max_length"], 5) or counter == len(data["prompt"])
        inputs = Inputs(
            torch.tensor([expected["input_token"]]),
            torch.tensor([expected["position"]]),
            params[None],
        )
        numbers = [expected["multinomial_uniform"], expected["accept_uniform"]]
        draw = golden.Replay(numbers * 33)
        assert any(is_recorded(step, expected) for step in variants(graph, inputs, monkeypatch))
        sequence += expected["emitted"]
        counter += len(expected["emitted"])
    assert must_stop(counter, data["max_length"], 5) and sequence == data["sequence"]


@pytest.mark.parametrize("run", range(3))
def test_the_loop_draws_in_the_recorded_order(run: int) -> None:
    data = golden.recorded("eagle1_sample")["runs"][run]
    numbers = list(data["context_encoding"]["uniform_target_then_unused_draft"])
    for step in data["steps"]:
        numbers += [step["multinomial_uniform"], step["accept_uniform"]]
    draw = golden.Replay(numbers)
    found = generate(
        golden.fused("eagle1", chance=Chance(sampling_of("eagle1_sample"), draw)),
        data["prompt"],
        max_length=data["max_length"],
        eos_token_ids=[data["eos_token_id"]],
        params=params_of("eagle1_sample"),
    )
    draw.assert_used_up()
    assert list(found.sequence) == data["sequence"]


@pytest.mark.parametrize("case", CASES)
def test_probabilities_from_recorded_logits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, compared = golden.tensors(case), 0
    for key, logits in expected.items():
        prefix, _, name = key.rpartition(".")
        if name != "target_logits" or ".s" not in prefix:
            continue
        kept = (expected[f"{prefix}.target_probs"] > 0).sum(dim=-1)  # of top_k 5 or 20
        dropped = kept < params_of(case)[0]
        with monkeypatch.context() as patch:
            patch.setattr(sampler, "beyond_top_p", deciding(dropped[None]))
            ids, probs = sampler.candidates(logits[None], params_of(case)[None], sampling_of(case))
        golden.assert_close(probs[0], expected[f"{prefix}.target_probs"])
        is_possible = probs[0] > 0  # among the rest ties may change places
        recorded_ids = expected[f"{prefix}.target_indices"][is_possible]
        assert torch.equal(ids[0][is_possible], recorded_ids)
        compared += 1
    assert compared == 12


@pytest.mark.parametrize("run", range(3))
def test_logits_and_residuals(run: int) -> None:
    expected, data = golden.tensors("eagle1_sample"), golden.recorded("eagle1_sample")["runs"][run]
    numbers = list(data["context_encoding"]["uniform_target_then_unused_draft"])
    for step in data["steps"]:
        numbers += [step["multinomial_uniform"], step["accept_uniform"]]
    chance = Chance(sampling_of("eagle1_sample"), golden.Replay(numbers))
    found = generate(
        golden.fused("eagle1", chance=chance),
        data["prompt"],
        max_length=data["max_length"],
        params=params_of("eagle1_sample"),
    )
    golden.assert_close(found.begun.logits, expected[f"r{run}.cte.target_logits"])
    for index in range(data["logits_steps"]):
        step, key = found.steps[index], f"r{run}.s{index}"
        assert step.sampled is not None
        golden.assert_close(torch.cat(step.draft_logits, 1)[0], expected[f"{key}.draft_logits"])
        golden.assert_close(step.target_logits[0], expected[f"{key}.target_logits"])
        golden.assert_close(step.sampled.probs[0], expected[f"{key}.target_probs"])
        golden.assert_close(step.sampled.adjusted[0], expected[f"{key}.adjusted"])
