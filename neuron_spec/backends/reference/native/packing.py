"""What packed weights are, and int8's rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

LANES = 16
NUMBERS = {"float32": 0, "bfloat16": 1, "int8": 2}
"""Kinds of numbers as `kernels.cpp` counts them."""
_LARGEST = 127


@dataclass(frozen=True)
class Packed:
    """One weight [out, in], packed (`Kernels.pack`).

    Attributes:
        numbers: float32; int8; or bfloat16, of which two inputs of an output follow each other.
        data: panels of 16 outputs, [panels, in, 16], padded with zeros.
        scales: of int8, one an output, float32.
        bias: [out] float32, or None.
    """

    numbers: str
    data: Tensor
    out_features: int
    in_features: int
    scales: Tensor | None = None
    bias: Tensor | None = None


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] -> int8 of the same shape and scales [out] float32: weight = scale x int8, nearly.

    Symmetric, one scale an output, to the nearest.
    """
    largest = weight.abs().amax(dim=1).float()
    scales = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    return (weight.float() / scales[:, None]).round_().to(torch.int8), scales


def dequantized(weight: Tensor) -> Tensor:
    """What `quantize` keeps of a weight, in its dtype."""
    quantized, scales = quantize(weight)
    return (quantized.float() * scales[:, None]).to(weight.dtype)


def interleaved(parts: Sequence[Tensor]) -> Tensor:
    """Two of [n] each -> [2 x padded n]: 16 items of one, 16 of the other, and so on."""
    return torch.stack([padded(part).view(-1, LANES) for part in parts], dim=1).flatten()


def padded(items: Tensor) -> Tensor:
    """[n] -> zeros up to whole panels."""
    return F.pad(items, (0, -len(items) % LANES))
