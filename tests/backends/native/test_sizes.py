"""Memory is made ready for the weights that will be packed: not much less, and not much more."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

from neuron_spec.backends.reference.native.pages import LargePages
from neuron_spec.backends.reference.native.sizes import packed_bytes
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.checkpoints.prepare import prepare
from neuron_spec.spec import BuildSpec, load_spec


class Counting(LargePages):
    """Knows how much it was asked for."""

    num_bytes = 0

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        self.num_bytes += math.prod(shape) * dtype.itemsize
        return super().empty(*shape, dtype=dtype)


def written(folder: Path, *, is_tied: bool = False, **reference: str) -> BuildSpec:
    """Of sizes that panels of 16 divide."""
    tiny.write_target(folder / "target", vocab_size=320, tie_word_embeddings=is_tied)
    tiny.write_eagle(folder / "eagle", vocab_size=320)
    path = tiny.write_spec(
        folder / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 64, "max_total_tokens": 96, "batch_size": 2},
        reference=reference,
    )
    return load_spec(path)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    "reference",
    [
        {},
        {"dtype": "bfloat16"},
        {"draft_weights": "int8"},
        {"dtype": "bfloat16", "target_weights": "int8"},
    ],
)
def test_it_is_what_is_packed(reference: dict[str, str], is_tied: bool, tmp_path: Path) -> None:
    spec = written(tmp_path, is_tied=is_tied, **reference)
    prepared, pages = prepare(spec, tmp_path / "draft"), Counting()
    speculator = open_speculator(spec, prepared.target, prepared.draft, pages)
    speculator.prefill(0, (5, 6, 7))
    speculator.step(3)  # LM heads are packed when they are first used
    assert pages.num_bytes == packed_bytes(spec, prepared.target, prepared.draft)


def test_without_kernels_it_is_none(tmp_path: Path) -> None:
    spec = written(tmp_path, kernels="eager")
    prepared = prepare(spec, tmp_path / "draft")
    assert packed_bytes(spec, prepared.target, prepared.draft) == 0
    assert packed_bytes(written(tmp_path), prepared.target, prepared.draft) > 0


def test_of_a_pickle_nothing_is_told_in_advance(tmp_path: Path) -> None:
    spec = written(tmp_path)
    target = prepare(spec, tmp_path / "draft").target
    assert packed_bytes(spec, target, None) > 0
    (target / "model.safetensors").unlink()
    torch.save({"lm_head.weight": torch.ones(4, 4)}, target / "pytorch_model.bin")
    assert packed_bytes(spec, target, None) == 0
