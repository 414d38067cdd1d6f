"""The target and the EAGLE head as torch objects, loaded from prepared checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.linear import Linear
from neuron_spec.backends.reference.transformer import Decoder, Has, Layer, Norm, Read
from neuron_spec.checkpoints.formats import eagle
from neuron_spec.checkpoints.model_config import ModelConfig, read_config
from neuron_spec.checkpoints.tensors import CheckpointFiles


@dataclass(frozen=True)
class Placement:
    """Where and how a model runs."""

    num_slots: int
    length: int
    """Positions the cache holds."""
    dtype: torch.dtype
    device: torch.device


class Target:
    """A causal language model."""

    def __init__(self, directory: Path, placement: Placement) -> None:
        config = read_config(directory)
        read, has = _reader(directory, placement)
        eps = config.rms_norm_eps
        self._embedding = read("model.embed_tokens.weight")
        layers = [
            Layer(config, f"model.layers.{index}.", read, has)
            for index in range(config.num_hidden_layers)
        ]
        self._norm = Norm(read("model.norm.weight"), eps)
        head = self._embedding if config.tie_word_embeddings else read("lm_head.weight")
        self._lm_head = Linear(head)
        self._decoder = _decoder(config, layers, placement)

    def hidden(self, tokens: Tensor, starts: Sequence[int], first_slot: int = 0) -> Tensor:
        """Hidden states after the final norm, [rows, n, hidden], of ids [rows, n]."""
        embedded = F.embedding(tokens, self._embedding)
        return self._norm(self._decoder(embedded, starts, first_slot))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        return self._lm_head(hidden)

    @property
    def cache_bytes(self) -> int:
        """Memory of the KV cache."""
        return self._decoder.cache.num_bytes


class EagleHead:
    """An EAGLE v1 draft head, prepared (with its own copies of embedding and LM head).

    With `layers.0.input_layernorm` in the file the norm is applied to fc's output, as NxDI does
    under `enable_eagle_draft_input_norm` (`models/llama/modeling_llama.py`).
    """

    def __init__(self, directory: Path, placement: Placement) -> None:
        config = read_config(directory)
        read, has = _reader(directory, placement)
        self._embedding = read(eagle.EMBEDDING)
        bias = read(eagle.FC_BIAS) if has(eagle.FC_BIAS) else None
        self._fc = Linear(read(eagle.FC_WEIGHT), bias)
        self._lm_head = Linear(read(eagle.LM_HEAD))
        self._decoder = _decoder(config, [Layer(config, "layers.0.", read, has)], placement)

    def forward(
        self, tokens: Tensor, features: Tensor, starts: Sequence[int], first_slot: int = 0
    ) -> Tensor:
        """Next features [rows, n, hidden] from ids [rows, n] and features [rows, n, hidden]."""
        embedded = F.embedding(tokens, self._embedding)
        joined = self._fc(torch.cat([embedded, features], dim=-1))  # embedding first
        return self._decoder(joined, starts, first_slot)

    def logits(self, features: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]; no final norm in EAGLE v1."""
        return self._lm_head(features)


def _reader(directory: Path, placement: Placement) -> tuple[Read, Has]:
    files = CheckpointFiles(directory)

    def read(name: str) -> Tensor:
        return files.read(name).to(device=placement.device, dtype=placement.dtype)

    return read, files.tensors.__contains__


def _decoder(config: ModelConfig, layers: Sequence[Layer], placement: Placement) -> Decoder:
    return Decoder(
        config,
        layers,
        num_slots=placement.num_slots,
        length=placement.length,
        dtype=placement.dtype,
        device=placement.device,
    )
