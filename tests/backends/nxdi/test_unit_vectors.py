"""NxDI's own functions, input by input, as recorded."""

from __future__ import annotations

import math
from typing import Any

import nxdi_golden as golden
import pytest
import torch
from torch import Tensor

from neuron_spec.backends.reference.nxdi import sampler
from neuron_spec.backends.reference.nxdi.acceptance import (
    Accepted,
    adjusted_probs,
    draft_probs,
    num_accepted_by_test,
    postprocessed,
    selected,
)
from neuron_spec.backends.reference.nxdi.sampler import Sampling, draw_token

VECTORS = golden.recorded("unit_vectors")
PAD = 0


def named(group: str, key: str) -> pytest.MarkDecorator:
    vectors = VECTORS[group]
    return pytest.mark.parametrize("vector", vectors, ids=[str(v[key]) for v in vectors])


def row(values: Any) -> Tensor:
    return torch.tensor([values])


@named("speculative_sampling", "name")
def test_speculative_sampling(vector: dict[str, Any]) -> None:
    drafts, ids, probs = (row(vector[k]) for k in ("draft_ids", "target_indices", "target_probs"))
    adjusted = adjusted_probs(drafts, ids, probs)
    golden.assert_close(adjusted, row(vector["adjusted_target_probs"]))
    resampled = draw_token(ids, adjusted, torch.full((1, 1, 1), vector["multinomial_uniform"]))
    assert resampled[0].tolist() == vector["resampled_ids"]
    target_probs = draft_probs(drafts, ids, probs)
    accepted = num_accepted_by_test(target_probs, row(vector["accept_uniform"]))
    assert accepted.tolist() == [vector["num_accepted_by_mask"]]
    tokens = selected(drafts, resampled, accepted, PAD)
    assert tokens[0].tolist() == vector["tokens"]
    found = postprocessed(drafts, tokens, torch.tensor([20]))
    assert found.tokens[0].tolist() == vector["postprocessed_accepted_tokens"]
    assert found.next_positions.tolist() == [vector["next_position_from_20"]]
    assert found.next_tokens.tolist() == [vector["next_input_id"]]


@named("eagle_tkg_postprocessor", "name")
def test_postprocessor(vector: dict[str, Any]) -> None:
    found: Accepted = postprocessed(
        row(vector["candidate_tokens"][1:]),
        row(vector["target_tokens"]),
        torch.tensor([vector["position"]]),
    )
    assert found.tokens[0].tolist() == vector["accepted_tokens"]
    assert found.next_tokens.tolist() == [vector["next_input_id"]]
    assert found.next_positions.tolist() == [vector["next_position"]]
    mask = golden.buckets().seen(found.next_positions.tolist())
    assert int(mask.sum()) == vector["next_attention_mask_sum"]


SAMPLER = [vector for vector in VECTORS["sampler"] if "raises" not in vector]


@pytest.mark.parametrize("vector", SAMPLER, ids=[f"{v['desc']}-{v['dynamic']}" for v in SAMPLER])
def test_sampler(vector: dict[str, Any]) -> None:
    params = row([vector["top_k"], vector["top_p"], vector["temperature"]])
    sampling = Sampling(True, vector["dynamic"], global_topk=vector["global_topk"])
    ids, probs = sampler.candidates(row(vector["logits"]), params, sampling)
    assert ids[0].tolist() == vector["indices"]
    expected = torch.tensor([math.nan if p is None else p for p in vector["probs"]])
    torch.testing.assert_close(probs[0], expected, atol=1e-6, rtol=0, equal_nan=True)
    assert draw_token(ids, probs, row([vector["uniform"]])).tolist() == [vector["token"]]


def test_a_list_longer_than_the_vocabulary_fails() -> None:
    vector = next(v for v in VECTORS["sampler"] if v.get("raises"))
    params = row([vector["top_k"], vector["top_p"], vector["temperature"]])
    sampling = Sampling(True, vector["dynamic"], global_topk=vector["global_topk"])
    with pytest.raises(RuntimeError, match=vector["message"]):
        sampler.candidates(torch.zeros(1, 10), params, sampling)


@named("validate_and_infer_sampling_params", "params_topk_topp_temp")
def test_validated_params(vector: dict[str, Any]) -> None:
    params = row(vector["params_topk_topp_temp"])
    if vector["raises"]:
        assert vector["raises"] == "ValueError"
        with pytest.raises(ValueError, match="expected"):
            sampler.validated(params, 256)
    else:
        golden.assert_close(sampler.validated(params, 256)[0], torch.tensor(vector["inferred"]))


def test_deterministic_fixes_the_resampling_alone() -> None:
    def no_draw(shape: tuple[int, ...]) -> Tensor:
        raise AssertionError("nothing random")

    fixed = Sampling(True, deterministic=True)
    assert sampler.selector(fixed, no_draw, (1, 1, 1)).tolist() == [[[0.5]]]
    assert sampler.selector(Sampling(True), torch.zeros, (1, 1)).tolist() == [[0.0]]
