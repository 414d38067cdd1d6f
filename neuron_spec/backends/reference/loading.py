"""What loading any model or head needs: where it runs, its parameters, its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from neuron_spec.backends.reference.native.binding import Native
from neuron_spec.backends.reference.parameters import Parameters
from neuron_spec.backends.reference.recorded import Record
from neuron_spec.backends.reference.transformer import Decoder, Layer
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
    native: Native | None = None
    """The compiled kernels, where they run it."""
    record: Record | None = None
    """How its passes are recorded, where they are."""


def parameters_of(
    directory: Path, placement: Placement, names: Sequence[str] = WEIGHT_FILES
) -> Parameters:
    """A directory's parameters as the placement wants them."""
    files = CheckpointFiles(directory, names)

    def read(name: str) -> Tensor:
        return files.read(name).to(device=placement.device, dtype=placement.dtype)

    return Parameters(read, files.tensors.__contains__, placement.native)


def decoder_of(
    config: ModelConfig,
    layers: Sequence[Layer],
    placement: Placement,
    taps: tuple[int, ...] = (),
) -> Decoder:
    """A decoder of these layers with a cache of the placement's size."""
    decoder = Decoder(
        config,
        layers,
        num_slots=placement.num_slots,
        length=placement.length,
        dtype=placement.dtype,
        device=placement.device,
        taps=taps,
        native=placement.native,
    )
    if placement.record is not None:
        decoder.record_passes(placement.record)
    return decoder
