"""The likeliest id: what `torch.argmax` says, bit patterns that are hard included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.sampling import best_ids

NUMBERS = st.sampled_from([-float("inf"), -1.0, -0.0, 0.0, 1.0, 2.0, float("inf"), float("nan")])
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@given(st.lists(NUMBERS, min_size=12, max_size=12), st.sampled_from(DTYPES))
def test_it_is_the_first_of_the_largest(numbers: list[float], dtype: torch.dtype) -> None:
    for shape in ((12,), (3, 4), (2, 3, 2)):
        logits = torch.tensor(numbers, dtype=dtype).view(shape)
        found, expected = best_ids(logits), logits.argmax(dim=-1)
        assert torch.equal(found, expected)
        assert found.dtype == torch.int64


@pytest.mark.parametrize("vocab", [1, 31, 4099, 49152])
def test_ties_and_views_in_a_long_row(vocab: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 2 * vocab).mul(2).round().bfloat16()
    for view in (logits[:, 1:, ::2], logits[..., :vocab], logits[:, :0]):
        assert torch.equal(best_ids(view), view.argmax(dim=-1))
