"""The compiled kernels: products against PyTorch's, and what a row's result depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuron_spec.backends.reference.linear import Linear
from neuron_spec.backends.reference.native.binding import Native
from neuron_spec.backends.reference.native.compiler import kernels
from neuron_spec.backends.reference.native.packing import Packed, dequantized, quantize
from neuron_spec.backends.reference.native.pages import LargePages
from neuron_spec.sampling import best_ids

KINDS = ("float32", "bfloat16", "int8")
SIZES = st.integers(1, 70)
WIDTHS = SIZES | st.sampled_from([767, 768, 769, 1536, 1537, 2307])
"""Of inputs; the long ones are taken in stretches where there are many rows."""
WIDE = [False, True]


def rounds_inputs(kind: str, is_wide: bool) -> bool:
    """Whether such products are of rows rounded to bfloat16: in pairs, that is, not in tiles."""
    has_pairs = kernels().has_wide("bfloat16") and not kernels().has_wide("float32")
    return has_pairs and is_wide and kind == "bfloat16"


def weight_of(kind: str, out: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """A weight to be packed, and the one that it then stands for."""
    weight = torch.randn(out, width, generator=torch.Generator().manual_seed(seed))
    if kind == "bfloat16":
        weight = weight.bfloat16()
    return weight, dequantized(weight) if kind == "int8" else weight


@pytest.mark.parametrize("is_wide", WIDE)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 100), width=WIDTHS, out=SIZES, seed=st.integers(0, 99), biased=st.booleans()
)
def test_products_are_those_of_the_weights(
    kind: str, is_wide: bool, rows: int, width: int, out: int, seed: int, biased: bool
) -> None:
    weight, stands_for = weight_of(kind, out, width, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x, bias = torch.randn(rows, width, generator=generator), torch.randn(out, generator=generator)
    packed = kernels().pack([weight], bias if biased else None, is_int8=kind == "int8")
    found = kernels().linear(packed, x, is_wide=is_wide)
    if rounds_inputs(kind, is_wide):
        x = x.bfloat16()
    expected = x.double() @ stands_for.double().T + (bias.double() if biased else 0)
    torch.testing.assert_close(found.double(), expected, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_wide_products_are_as_exact_as_pytorchs(kind: str) -> None:
    """Of float32 in three parts nothing is lost that float32's own sums would keep."""
    generator = torch.Generator().manual_seed(3)
    scales = torch.logspace(-12, 12, 1536)  # of inputs and, the other way round, of weights
    x = torch.randn(96, 1536, generator=generator) * scales
    weight, _ = weight_of(kind, 320, 1536, 4)
    weight = (weight.float() / scales).to(weight.dtype)
    if rounds_inputs(kind, is_wide=True):
        x = x.bfloat16().float()
    exact = x.double() @ weight.double().T
    found = kernels().linear(kernels().pack([weight]), x, is_wide=True)
    pair = found, x @ weight.float().T
    error, theirs = ((y.double() - exact).square().mean().sqrt() for y in pair)
    assert error < 3 * theirs


@pytest.mark.parametrize("is_wide", WIDE)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(2, 70), width=WIDTHS, out=SIZES, data=st.data())
def test_a_rows_bits_are_its_own(
    kind: str, threads: int, is_wide: bool, rows: int, width: int, out: int, data: st.DataObject
) -> None:
    packed = kernels().pack([weight_of(kind, out, width, 0)[0]], is_int8=kind == "int8")
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))
    first = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(first + 1, rows))
    before = torch.get_num_threads()
    whole = kernels().linear(packed, x, is_wide=is_wide)
    torch.set_num_threads(threads)
    try:
        part = kernels().linear(packed, x[first:end].contiguous(), is_wide=is_wide)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(whole[first:end], part)


@pytest.mark.parametrize("is_wide", WIDE)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40), width=SIZES, out=st.integers(1, 200), seed=st.integers(0, 99),
    is_tied=st.booleans(), biased=st.booleans(), rounds=st.booleans(), threads=st.integers(1, 3),
)  # fmt: skip
def test_the_largest_are_those_of_the_products(
    kind: str, is_wide: bool, rows: int, width: int, out: int, seed: int, is_tied: bool,
    biased: bool, rounds: bool, threads: int,
) -> None:  # fmt: skip
    weight, _ = weight_of(kind, out, width, seed)
    generator = torch.Generator().manual_seed(seed)
    x, bias = torch.randn(rows, width, generator=generator), torch.randn(out, generator=generator)
    if is_tied:  # of whole numbers many outputs are equal, and some are all negative
        weight, x, bias = weight.round(), x.round(), bias.round() - 100
    packed = kernels().pack([weight], bias if biased else None, is_int8=kind == "int8")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = kernels().largest(packed, x, is_wide=is_wide, as_bfloat16=rounds)
    finally:
        torch.set_num_threads(before)
    outputs = kernels().linear(packed, x, is_wide=is_wide)
    assert torch.equal(found, best_ids(outputs.bfloat16() if rounds else outputs))


def test_the_largest_of_what_are_no_numbers_is_an_output() -> None:
    packed = kernels().pack([torch.ones(20, 4)])
    x = torch.tensor([[float("nan")] * 4, [-float("inf")] * 4, [1.0] * 4])
    assert kernels().largest(packed, x).tolist() == [0, 0, 0]


@settings(max_examples=40, deadline=None)
@given(out=SIZES, width=SIZES, scale=st.floats(1e-6, 1e6), seed=st.integers(0, 9))
def test_int8_is_off_by_half_a_step_at_most(out: int, width: int, scale: float, seed: int) -> None:
    weight = scale * torch.randn(out, width, generator=torch.Generator().manual_seed(seed))
    weight[0] = 0  # a row of zeros has a scale too
    quantized, scales = quantize(weight)
    assert quantized.abs().max() <= 127
    error = (dequantized(weight) - weight).abs()
    assert bool((error <= 0.5001 * scales[:, None]).all())
    assert bool((quantized.abs().amax(dim=1)[1:] == 127).all())


def unpacked(packed: Packed) -> Tensor:
    """[panels, words, 16 x inputs a word] -> [outputs, inputs], padding and all."""
    inputs_a_word = packed.data.shape[2] // 16
    words = packed.data.unflatten(2, (16, inputs_a_word))
    return words.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)


@pytest.mark.parametrize("in_pages", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=4), width=WIDTHS, seed=st.integers(0, 9),
    threads=st.integers(1, 3),
)  # fmt: skip
def test_packed_weights_are_the_weights(
    kind: str, in_pages: bool, sizes: list[int], width: int, seed: int, threads: int
) -> None:
    parts = [weight_of(kind, out, width, seed + index)[0] for index, out in enumerate(sizes)]
    pages = LargePages() if in_pages else None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        packed = kernels().pack(parts, is_int8=kind == "int8", pages=pages)
    finally:
        torch.set_num_threads(before)
    whole = torch.cat(parts)
    expected, scales = quantize(whole) if kind == "int8" else (whole, None)
    assert (packed.numbers, packed.out_features, packed.in_features) == (kind, *whole.shape)
    found = unpacked(packed)
    assert torch.equal(found[: len(whole), :width], expected)
    assert not found[len(whole) :].any() and not found[:, width:].any()
    if scales is not None:
        assert packed.scales is not None
        assert torch.equal(packed.scales[: len(scales)], scales)


@pytest.mark.parametrize("kind", KINDS)
def test_gate_and_up_take_turns(kind: str) -> None:
    numbers = torch.arange(1.0, 41.0)[:, None].expand(40, 3)
    gate, up = (part.to(weight_of(kind, 1, 1, 0)[0].dtype) for part in numbers.split(20))
    packed = kernels().pack([gate, up], is_int8=kind == "int8", are_gated=True)
    rows = unpacked(packed)[:, 0].float()
    if packed.scales is not None:
        rows *= packed.scales
    first, second, zeros = range(1, 21), range(21, 41), [0] * 12
    expected = [*first[:16], *second[:16], *first[16:], *zeros, *second[16:], *zeros]
    torch.testing.assert_close(rows, torch.tensor(expected).float())
    assert packed.out_features == 64


@pytest.mark.parametrize("takes_wide", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_a_linear_goes_through_them_as_far_as_they_take(
    dtype: torch.dtype, rows: int, takes_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = [torch.randn(size, 24).to(dtype) for size in (40, 8)]
    bias, x = torch.randn(48).to(dtype), torch.randn(1, rows, 24).to(dtype)
    linear = Linear(weights, bias, native=Native(kernels(), 4, takes_wide))
    used: list[tuple[int, bool]] = []
    native = type(kernels()).linear

    def watched(*given: Any, is_wide: bool) -> Tensor:
        used.append((len(given[2]), is_wide))
        return native(*given, is_wide=is_wide)

    monkeypatch.setattr(type(kernels()), "linear", watched)
    found = linear(x)
    assert used == ([(rows, rows > 4)] if rows <= 4 or takes_wide else [])
    expected = x.double() @ torch.cat(weights).double().T + bias.double()
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
    best = linear.best(x)
    assert (best.shape, best.dtype) == (x.shape[:-1], torch.int64)
    assert torch.equal(best, best_ids(found))
