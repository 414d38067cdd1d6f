"""Whole layers through the compiled kernels against the same through PyTorch's operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import FAMILIES, build
from torch import Tensor

from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import Eagle3Head, Target
from neuron_spec.backends.reference.native.binding import Native
from neuron_spec.backends.reference.native.compiler import kernels
from neuron_spec.backends.reference.scoring import branches_of
from neuron_spec.checkpoints.model_config import read_config

GOLDEN = Path(__file__).parents[2] / "golden"
CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.12}


NARROW, WIDE = "narrow", "wide"


def placement(
    through: str | None, *, dtype: torch.dtype = torch.float32, slots: int = 1, length: int = 64
) -> Placement:
    native = None
    if through is not None:
        native = Native(kernels(), None if through == NARROW else 0, takes_wide=True)
    return Placement(slots, length, dtype, CPU, native)


def ids(rows: int, count: int, vocab_size: int = 97) -> Tensor:
    return torch.randint(vocab_size, (rows, count), generator=torch.Generator().manual_seed(count))


def walk(target: Target) -> tuple[Tensor, Tensor]:
    """Hidden states and logits of a prompt, of single tokens, of a wide pass and of a tree's."""
    tokens, parts = ids(2, 24), []
    parts.append(target.hidden(tokens[:, :9], [0, 0])[0])
    for position in (9, 10):
        parts.append(target.hidden(tokens[:, position : position + 1], [position] * 2)[0])
    parts.append(target.hidden(tokens[:, 11:16], [11, 11])[0])
    parts.append(target.hidden(tokens[1:, 16:18], [16], 1)[0].expand(2, -1, -1))
    tree = torch.tensor([[0, 0, 1, 2, 2]] * 2)
    branches = branches_of([16, 18], tree)
    parts.append(target.hidden(tokens[:, 18:24], [16, 18], 0, branches)[0])
    hidden = torch.cat(parts, dim=1)
    return hidden, target.logits(hidden)


@pytest.mark.parametrize("through", [NARROW, WIDE])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_compute_the_same(
    family: str, dtype: torch.dtype, through: str, tmp_path: Path
) -> None:
    build(family, tmp_path)
    places = [placement(each, dtype=dtype, slots=2) for each in (None, through)]
    targets = [Target(tmp_path, place) for place in places]
    with torch.inference_mode():
        (hidden, logits), (found_hidden, found_logits) = map(walk, targets)
    tolerance = TOLERANCE[dtype]
    assert found_logits.dtype == dtype
    torch.testing.assert_close(found_hidden, hidden, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found_logits, logits, atol=tolerance, rtol=tolerance)
    for state, found in zip(targets[0].cache.keys, targets[1].cache.keys, strict=True):
        torch.testing.assert_close(found, state, atol=tolerance, rtol=tolerance)
    for state, found in zip(targets[0].cache.values, targets[1].cache.values, strict=True):
        torch.testing.assert_close(found, state, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("through", [NARROW, WIDE])
@pytest.mark.parametrize("head_dim", [24, 64, 128])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_long_texts_are_attended_in_segments(
    dtype: torch.dtype, head_dim: int, through: str, tmp_path: Path
) -> None:
    """A wide pass of that many tokens goes through tiles where the processor has them."""
    build("llama", tmp_path, head_dim=head_dim)
    tokens = ids(2, 236)
    tree = torch.tensor([[0, 0, 1, 2, 2]] * 2)
    passes = []
    for each in (None, through):
        target = Target(tmp_path, placement(each, dtype=dtype, slots=2, length=256))
        with torch.inference_mode():
            found = [
                target.hidden(tokens[:, :117], [0, 0])[0],
                target.hidden(tokens[:, 117:193], [117, 117])[0],
                target.hidden(tokens[1:, 193:228], [193], 1)[0],  # beyond the second segment
                target.hidden(tokens[:, 228:229], [193, 228])[0],
                target.hidden(tokens[:, 229:235], [194, 229], 0, branches_of([194, 229], tree))[0],
            ]
        passes.append(found)
    for expected, found in zip(*passes, strict=True):
        torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_taps_are_the_inputs_of_their_layers(tmp_path: Path) -> None:
    build("llama", tmp_path)
    tapped = [
        Target(tmp_path, placement(through), taps=(0, 2)).hidden(ids(1, 7), [0])[1]
        for through in (None, NARROW, WIDE)
    ]
    torch.testing.assert_close(tapped[1], tapped[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tapped[2], tapped[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("through", [NARROW, WIDE])
@pytest.mark.parametrize(
    ("family", "head_dim"), [("llama", 8), ("llama", 64), ("qwen3", 8), ("llama-biases", 8)]
)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_tokens_bits_do_not_depend_on_the_pass(
    family: str, head_dim: int, dtype: torch.dtype, through: str, tmp_path: Path
) -> None:
    build(family, tmp_path, head_dim=head_dim)
    tokens, before = ids(1, 140), 120  # and a segment's end between
    outputs = []
    with torch.inference_mode():
        for width in (1, 3, 7, 20):
            target = Target(tmp_path, placement(through, dtype=dtype, length=256))
            target.hidden(tokens[:, :before], [0])
            starts = range(before, 140, width)
            parts = [target.hidden(tokens[:, s : min(s + width, 140)], [s])[0] for s in starts]
            outputs.append(target.logits(torch.cat(parts, dim=1)))
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_weights_live_on_in_their_packed_form_alone(tmp_path: Path) -> None:
    build("llama", tmp_path)
    found = []
    for keeps in (True, False):
        native = Native(kernels(), keeps_weights=keeps)
        target = Target(tmp_path, Placement(1, 64, torch.float32, CPU, native))
        logits = target.logits(target.hidden(ids(1, 9), [0])[0])
        layer = target.layers[0]
        products = (layer.attention.qkv, layer.attention.output, layer.gate_up, layer.down)
        assert all(bool(product.parts) == keeps for product in products)
        found.append(logits)
    assert torch.equal(*found)


@pytest.mark.parametrize("count", [6, 40])  # the second as threads share the rows' tiles
@pytest.mark.parametrize("through", [NARROW, WIDE])
def test_an_eagle3_head(through: str, count: int) -> None:
    exact = Eagle3Head(GOLDEN / "eagle3", placement(None, dtype=torch.float64))
    head = Eagle3Head(GOLDEN / "eagle3", placement(through))
    width = read_config(GOLDEN / "eagle3").hidden_size
    features = torch.randn(1, count, 3 * width, generator=torch.Generator().manual_seed(0))
    first = head.forward(ids(1, count), features, [0])
    expected = exact.forward(ids(1, count), features.double(), [0])
    torch.testing.assert_close(first, expected.float(), atol=1e-5, rtol=1e-5)
    second = head.forward(ids(1, 2), first[:, -2:], [count])
    expected = exact.forward(ids(1, 2), first[:, -2:].double(), [count])
    torch.testing.assert_close(second, expected.float(), atol=1e-5, rtol=1e-5)
