"""Rotary position embedding (arXiv:2104.09864) in Hugging Face's half-split layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.errors import CheckpointError


def rotary_tables(config: ModelConfig, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin for positions 0 … length-1, each [length, head_dim] float32.

    Raises:
        CheckpointError: a kind of rope scaling that is not computed here.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = _scaled(1.0 / config.rope_theta**exponents, config.rope_scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat([angles, angles], dim=-1).to(device)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [rows, n, heads, head_dim] by tables [rows, n, 1, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


def _linear(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    return frequencies / float(scaling["factor"])


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Llama 3.1's: low frequencies are slowed by `factor`, high ones kept, a ramp between."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    ramp = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (ramp + (1 - ramp) / float(scaling["factor"]))


SCALINGS: dict[str, Callable[[Tensor, Mapping[str, Any]], Tensor]] = {
    "default": lambda frequencies, scaling: frequencies,
    "linear": _linear,
    "llama3": _llama3,
}


def _scaled(frequencies: Tensor, scaling: Mapping[str, Any] | None) -> Tensor:
    if scaling is None:
        return frequencies
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in SCALINGS:
        raise CheckpointError(
            f"rope scaling '{kind}' is not supported by the reference backend",
            where="config.json: rope_scaling",
            expected=f"one of {', '.join(SCALINGS)}",
        )
    return SCALINGS[kind](frequencies, scaling)
