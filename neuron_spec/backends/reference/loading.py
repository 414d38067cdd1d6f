"""What loading any model or head needs: where it runs, its parameters, its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from neuron_spec.backends.reference.transformer import Decoder, Has, Layer, Read
from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.checkpoints.tensors import WEIGHT_FILES, CheckpointFiles


@dataclass(frozen=True)
class Placement:
    """Where and how a model runs."""

    num_slots: int
    length: int
    """Positions the cache holds."""
    dtype: torch.dtype
    device: torch.device


def reader(
    directory: Path, placement: Placement, names: Sequence[str] = WEIGHT_FILES
) -> tuple[Read, Has]:
    """How to read a directory's parameters, and to ask whether there is one."""
    files = CheckpointFiles(directory, names)

    def read(name: str) -> Tensor:
        return files.read(name).to(device=placement.device, dtype=placement.dtype)

    return read, files.tensors.__contains__


def decoder_of(
    config: ModelConfig,
    layers: Sequence[Layer],
    placement: Placement,
    taps: tuple[int, ...] = (),
) -> Decoder:
    """A decoder of these layers with a cache of the placement's size."""
    return Decoder(
        config,
        layers,
        num_slots=placement.num_slots,
        length=placement.length,
        dtype=placement.dtype,
        device=placement.device,
        taps=taps,
    )
