"""The reference backend's arithmetic against transformers' own models, family by family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import FAMILIES, build

from neuron_spec.backends.reference import linear, transformer
from neuron_spec.backends.reference.models import Placement, Target


def placement(num_slots: int = 1, length: int = 128) -> Placement:
    return Placement(num_slots, length, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    model = build(family, tmp_path)
    tokens = torch.randint(0, 97, (1, 90), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(tokens).logits
        target = Target(tmp_path, placement())
        # A prompt, then single positions, then a block: every way the cache is written.
        pieces = [(0, 40), (40, 41), (41, 42), (42, 47), (47, 90)]
        hidden = [target.hidden(tokens[:, a:b], [a])[0] for a, b in pieces]
        found = target.logits(torch.cat(hidden, dim=1))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_rows_of_different_lengths_equal_single_rows(tmp_path: Path) -> None:
    build("llama", tmp_path)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, 97, (1, n), generator=generator) for n in (5, 70, 1)]
    block = torch.randint(0, 97, (3, 4), generator=generator)
    together = Target(tmp_path, placement(num_slots=3))
    with torch.inference_mode():
        for slot, prompt in enumerate(prompts):
            together.hidden(prompt, [0], slot)
        found, _ = together.hidden(block, [5, 70, 1])
        for slot, prompt in enumerate(prompts):
            alone = Target(tmp_path, placement())
            alone.hidden(prompt, [0])
            expected, _ = alone.hidden(block[slot : slot + 1], [prompt.shape[1]])
            torch.testing.assert_close(found[slot : slot + 1], expected, atol=1e-5, rtol=1e-5)


def test_long_prompts_go_through_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build("llama", tmp_path)
    tokens = torch.randint(0, 97, (1, 50), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        whole = Target(tmp_path, placement(), taps=(0, 2)).hidden(tokens, [0])
        monkeypatch.setattr(transformer, "PREFILL_CHUNK", 16)
        chunked = Target(tmp_path, placement(), taps=(0, 2)).hidden(tokens, [0])
    torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=1e-5)


def test_positions_beyond_the_cache_are_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    target = Target(tmp_path, placement(length=16))
    with pytest.raises(ValueError, match="beyond the cache of 16"):
        target.hidden(torch.zeros(1, 5, dtype=torch.long), [12])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 17])
def test_packed_linear_equals_plain(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in ((rows, 24), (40, 24), (40,))
    )
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    found = linear.Linear(weight, bias)(x[None])[0]
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


def test_without_packing_the_product_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(2, 8), torch.randn(4, 8)
    packed = linear.Linear(weight)(x)
    monkeypatch.setattr(linear, "_can_pack", lambda dtype: False)
    torch.testing.assert_close(linear.Linear(weight)(x), packed, atol=1e-5, rtol=1e-5)
