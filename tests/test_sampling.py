"""Logits to probabilities as Hugging Face has them, and parameters that are checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from neuron_spec.errors import RequestError
from neuron_spec.sampling import adjusted_logits, counts_after_drafts, ends_forbidden, probabilities
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.trees import Tree

# NxDI's recorded example: probabilities .4, .2, .15, .1, .05, .03, .03, .02 of ids 0 2 5 3 1 6 7 4.
LOGITS = torch.tensor(
    [-0.9163, -2.9957, -1.6094, -2.3026, -3.912, -1.8971, -3.5066, -3.5067, -4.6052, -4.6053]
)


def kept(**params: Any) -> list[int]:
    return probabilities(LOGITS, SamplingParams(**params)).nonzero().flatten().tolist()


def test_the_defaults_are_greedy() -> None:
    params = SamplingParams()
    assert params.is_greedy
    assert not SamplingParams(temperature=1e-9).is_greedy
    assert kept() == [0]


def test_temperature_zero_is_one_hot_at_the_lowest_id_of_a_tie() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -5.0, -5.0]])
    assert probabilities(logits, SamplingParams()).tolist() == [[0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 0.5, 2.0, 1e6])
def test_any_temperature_gives_finite_probabilities(temperature: float) -> None:
    logits = torch.tensor([3e38, 1.0, -3e38, -torch.inf])
    probs = probabilities(logits, SamplingParams(temperature=temperature))
    assert bool(probs.isfinite().all())
    assert float(probs.sum()) == pytest.approx(1)
    assert float(probs[3]) == 0


def test_a_tiny_temperature_nears_greedy() -> None:
    assert kept(temperature=1e-6) == [0]


def test_top_k_counts_ids_and_keeps_ties() -> None:
    assert kept(temperature=1.0, top_k=3) == [0, 2, 5]
    assert kept(temperature=1.0, top_k=1) == [0]
    tie = torch.tensor([2.0, 1.0, 1.0, 0.0])
    probs = probabilities(tie, SamplingParams(temperature=1.0, top_k=2))
    assert probs.nonzero().flatten().tolist() == [0, 1, 2]


@pytest.mark.parametrize("top_k", [0, -1, 10, 11, 1000])
def test_top_k_of_all_changes_nothing(top_k: int) -> None:
    """Where NxDI 0.9 makes 0 and -1 a uniform distribution."""
    plain = probabilities(LOGITS, SamplingParams(temperature=1.0))
    assert probabilities(LOGITS, SamplingParams(temperature=1.0, top_k=top_k)).equal(plain)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.3, [0]), (0.41, [0, 2]), (0.61, [0, 2, 5]), (0.7, [0, 2, 5]), (0.76, [0, 2, 3, 5])],
)
def test_top_p_keeps_the_token_that_crosses(top_p: float, expected: list[int]) -> None:
    """Probabilities .4, .2, .15, .1: at 0.7 NxDI 0.9 keeps two tokens, Hugging Face three."""
    assert kept(temperature=1.0, top_p=top_p) == expected


def test_top_p_prefers_lower_ids_on_ties() -> None:
    probs = probabilities(torch.zeros(1000), SamplingParams(temperature=1.0, top_p=0.0995))
    assert probs.nonzero().flatten().tolist() == list(range(100))


def test_min_p_is_relative_to_the_likeliest() -> None:
    assert kept(temperature=1.0, min_p=0.3) == [0, 2, 5]
    assert kept(temperature=1.0, min_p=1.0) == [0]
    assert len(kept(temperature=1.0, min_p=0.0)) == 10


def test_min_p_comes_before_top_p() -> None:
    """vLLM's order: of .4, .2, .15 (min_p left the rest out) .533, .267 reach 0.8 alone."""
    assert kept(temperature=1.0, min_p=0.3, top_p=0.79) == [0, 2]
    assert kept(temperature=1.0, top_p=0.79) == [0, 2, 3, 5]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
)
def test_temperature_top_k_top_p_are_hugging_faces(
    seed: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(seed))
    expected: Any = TemperatureLogitsWarper(temperature)(None, logits)
    expected = TopKLogitsWarper(top_k)(None, expected) if top_k else expected
    expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    torch.testing.assert_close(probabilities(logits, params), expected.softmax(dim=-1))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), penalty=st.sampled_from([0.7, 1.3]), min_p=st.floats(0.01, 1))
def test_min_p_and_repetition_penalty_are_hugging_faces(
    seed: int, penalty: float, min_p: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 20, generator=generator)
    ids = torch.randint(20, (1, 6), generator=generator)
    expected: Any = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits)
    expected = MinPLogitsWarper(min_p)(None, expected)
    counts = torch.zeros(1, 20).scatter_add(1, ids, torch.ones(1, 6))
    found = probabilities(
        logits,
        SamplingParams(temperature=1.0, repetition_penalty=penalty, min_p=min_p),
        prompt_counts=counts * (torch.arange(20) % 2),
        output_counts=counts * (torch.arange(20) % 2 == 0),
    )
    torch.testing.assert_close(found, expected.softmax(dim=-1))


def test_presence_and_frequency_count_the_output_only() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    counts = torch.tensor([0, 1, 3])
    found = adjusted_logits(torch.zeros(3), params, prompt_counts=counts + 1, output_counts=counts)
    assert found.tolist() == [0.0, -0.75, -1.25]
    assert adjusted_logits(torch.zeros(3), params, prompt_counts=counts).tolist() == [0, 0, 0]


def test_repetition_counts_prompt_and_output_and_moves_down_on_both_sides_of_zero() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    found = adjusted_logits(
        torch.tensor([4.0, -4.0, 4.0, -torch.inf]),
        params,
        prompt_counts=torch.tensor([1, 0, 0, 1]),
        output_counts=torch.tensor([0, 2, 0, 1]),
    )
    assert found.tolist() == [2.0, -8.0, 4.0, -torch.inf]


def test_the_bias_comes_before_the_repetition_penalty() -> None:
    """vLLM's order: (1 + 3) / 2 and not 1 / 2 + 3."""
    params = SamplingParams(logit_bias={1: 3.0}, repetition_penalty=2.0)
    found = adjusted_logits(torch.ones(2), params, output_counts=torch.tensor([0, 1]))
    assert found.tolist() == [1.0, 2.0]


def test_forbidden_ids_stay_forbidden_whatever_the_bias() -> None:
    params = SamplingParams(temperature=1.0, logit_bias={0: 100.0}, min_tokens=2)
    forbidden = ends_forbidden(params, torch.tensor([0, 1, 2]), [0, 2], 4)
    assert forbidden.tolist() == [[True, False, True, False]] * 2 + [[False] * 4]
    probs = probabilities(torch.zeros(3, 4), params, forbidden=forbidden)
    assert probs[:2].tolist() == [[0.0, 0.5, 0.0, 0.5]] * 2
    assert float(probs[2, 0]) == pytest.approx(1)
    assert not ends_forbidden(params, torch.tensor([0]), [], 4).any()


def test_a_bias_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(RequestError, match=r"0 … 2") as caught:
        probabilities(torch.zeros(3), SamplingParams(logit_bias={1: 1.0, 3: 1.0}))
    assert caught.value.field == "logit_bias"


def test_the_input_is_left_as_it_is() -> None:
    logits = LOGITS.clone()
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, logit_bias={1: 5})
    counts = torch.ones(10)
    probabilities(logits, params, output_counts=counts, forbidden=torch.zeros(10).bool())
    assert logits.equal(LOGITS)
    assert counts.equal(torch.ones(10))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 500, generator=generator).to(dtype)
    params = SamplingParams(temperature=0.8, top_p=0.9)
    found = probabilities(logits, params)
    assert found.dtype == torch.float32
    assert found.equal(probabilities(logits.float(), params))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -2),
        ("top_k", 1.0),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.1),
        ("presence_penalty", None),
        ("frequency_penalty", -2.1),
        ("logit_bias", {0: 101}),
        ("logit_bias", {-1: 1}),
        ("logit_bias", {"0": 1}),
        ("logit_bias", {0: float("nan")}),
        ("logit_bias", [1]),
        ("logit_bias", None),
        ("min_tokens", -1),
        ("min_tokens", 1.5),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 0.5),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_values_at_the_limits_are_taken() -> None:
    SamplingParams(temperature=0, top_k=-1, top_p=1, min_p=1, presence_penalty=-2, seed=-(2**63))
    SamplingParams(frequency_penalty=2, logit_bias={0: -100, 5: 100}, seed=2**63 - 1)


def test_counts_follow_the_branches_of_a_tree() -> None:
    tree = Tree.from_paths([[0], [1], [0, 0], [1, 0]])
    counts: Tensor = torch.tensor([[1, 0, 0], [0, 0, 0]])
    drafted = torch.tensor([[1, 2, 1, -1], [0, 0, 0, 0]])
    found = counts_after_drafts(counts, tree, drafted)
    assert found.dtype == counts.dtype
    assert found[0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 2, 0], [1, 0, 1]]
    assert found[1].tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0], [2, 0, 0], [2, 0, 0]]
    assert counts.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert counts_after_drafts(counts, Tree.chain(0), drafted[:, :0]).equal(counts[:, None])
