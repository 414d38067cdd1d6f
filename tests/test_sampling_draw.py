"""The draw from probabilities: the inverse CDF, robust at its ends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.sampling import probabilities, sample
from neuron_spec.sampling_params import SamplingParams


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, 1e-8, 0.1, 0.25, 0.5]), min_size=1, max_size=6).filter(any),
    st.one_of(st.floats(0, 1, exclude_max=True, width=32), st.just(1 - 2.0**-24)),
)
def test_the_draw_is_the_inverse_of_the_sums(weights: list[float], uniform: float) -> None:
    token = int(sample(torch.tensor(weights), torch.tensor(uniform)))
    assert weights[token] > 0
    below, above = sum(weights[:token]), sum(weights[: token + 1])
    point = uniform * sum(weights)
    assert below - 1e-6 <= point <= above + 1e-6


def test_every_share_is_met_exactly() -> None:
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25, 0.0])
    cells = (torch.arange(64) + 0.5) / 64
    counts = torch.bincount(sample(probs.expand(64, -1), cells), minlength=5)
    assert counts.tolist() == [16, 0, 32, 16, 0]
    borders = sample(probs.expand(4, -1), torch.tensor([0.0, 0.25, 0.75, 1 - 2.0**-24]))
    assert borders.tolist() == [0, 2, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_no_impossible_id_is_drawn_at_the_ends(dtype: torch.dtype) -> None:
    """Zeros in front, behind and between; sums that rounding leaves short of their end."""
    probs = torch.zeros(2, 50_000, dtype=dtype)
    probs[0, 7:40_000] = 1e-5
    probs[1, 49_000] = 1.0
    for uniform in (0.0, 0.5, 1 - 2.0**-24):
        first, second = sample(probs, torch.full((2,), uniform)).tolist()
        assert 7 <= first < 40_000
        assert second == 49_000


def test_an_overshooting_number_gives_the_last_possible_id() -> None:
    assert int(sample(torch.tensor([0.5, 0.5, 0.0]), torch.tensor(1.0))) == 1


@pytest.mark.parametrize("bad", [[0.0, 0.0], [float("nan"), 1.0], [float("nan")] * 2])
def test_nothing_can_be_drawn_from_nothing(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="NaN or all zero"):
        sample(torch.tensor([[0.5, 0.5], bad]), torch.zeros(2))


def test_an_all_forbidden_row_is_found_at_the_draw() -> None:
    params = SamplingParams(temperature=1.0)
    probs = probabilities(torch.zeros(1, 3), params, forbidden=torch.ones(1, 3).bool())
    with pytest.raises(ValueError, match="NaN or all zero"):
        sample(probs, torch.zeros(1))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31))
def test_rows_are_drawn_one_by_one(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(2, 3, 7, generator=generator).softmax(dim=-1)
    numbers = torch.rand(2, 3, generator=generator)
    drawn = sample(probs, numbers)
    assert drawn.dtype == torch.int64
    for i in range(2):
        for j in range(3):
            assert int(sample(probs[i, j], numbers[i, j])) == int(drawn[i, j])
