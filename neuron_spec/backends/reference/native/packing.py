"""Weights as the kernels read them: panels of 16 outputs, [panel][in][16], padded with zeros."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.native.pages import LargePages

LANES = 16
NUMBERS = {"float32": 0, "bfloat16": 1, "int8": 2}
"""Kinds of numbers as `kernels.cpp` counts them."""
_LARGEST = 127


@dataclass(frozen=True)
class Packed:
    """One weight [out, in], packed.

    Attributes:
        numbers: float32; int8; or bfloat16, of which two inputs of an output follow each other.
        scales: of int8, one an output, float32.
        bias: [out] float32, or None.
    """

    numbers: str
    data: Tensor
    out_features: int
    in_features: int
    scales: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def of(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        is_int8: bool = False,
        pages: LargePages | None = None,
    ) -> Packed:
        """Pack a float32 or bfloat16 weight [out, in]; `pages`: in which memory."""
        out_features, in_features = weight.shape
        kept = None if bias is None else bias.float().contiguous()
        if is_int8:
            quantized, scales = quantize(weight)
            scales = F.pad(scales, (0, -len(scales) % LANES)).contiguous()
            return cls("int8", _words(quantized, 1, pages), out_features, in_features, scales, kept)
        if weight.dtype == torch.bfloat16:
            return cls("bfloat16", _words(weight, 2, pages), out_features, in_features, None, kept)
        data = _words(weight.float(), 1, pages)
        return cls("float32", data, out_features, in_features, None, kept)


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


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """[ffn, in] each -> [2 x padded ffn, in]: 16 outputs of one, 16 of the other, and so on."""
    parts = [_padded(part, LANES).unflatten(0, (-1, LANES)) for part in (gate, up)]
    return torch.stack(parts, dim=1).flatten(0, 2)


def _padded(weight: Tensor, outputs: int, inputs: int = 1) -> Tensor:
    """Zeros up to whole multiples; a copy only where any are missing."""
    missing = (0, -weight.shape[1] % inputs, 0, -len(weight) % outputs)
    return F.pad(weight, missing) if any(missing) else weight


def _words(weight: Tensor, inputs_a_word: int, pages: LargePages | None) -> Tensor:
    """[out, in] -> [panels, in / inputs_a_word, 16, inputs_a_word]."""
    padded = _padded(weight, LANES, inputs_a_word)
    panels = padded.view(len(padded) // LANES, LANES, -1, inputs_a_word).transpose(1, 2)
    return pages.copy(panels) if pages else panels.contiguous()
