"""The target and the draft heads as torch objects, loaded from prepared checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.linear import Linear
from neuron_spec.backends.reference.transformer import Decoder, Eagle3Layer, Has, Layer, Norm, Read
from neuron_spec.checkpoints.formats import eagle, eagle3
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
    """A causal language model.

    Its features, what a draft head reads, are the hidden states after the final norm, or with
    `taps` the inputs of these layers side by side.
    """

    def __init__(
        self, directory: Path, placement: Placement, *, taps: tuple[int, ...] = ()
    ) -> None:
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
        self._decoder = _decoder(config, layers, placement, taps)

    def hidden(
        self, tokens: Tensor, starts: Sequence[int], first_slot: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Hidden states after the final norm [rows, n, hidden] and features [rows, n, feature] of
        ids [rows, n]."""
        embedded = F.embedding(tokens, self._embedding)
        output, tapped = self._decoder(embedded, starts, first_slot)
        hidden = self._norm(output)
        return hidden, hidden if tapped is None else tapped

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
        return self._decoder(joined, starts, first_slot)[0]

    def logits(self, features: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]; no final norm in EAGLE v1."""
        return self._lm_head(features)


class Eagle3Head:
    """An EAGLE-3 draft head, prepared: its LM head has the target's vocabulary.

    True features are three of the target's hidden states, which `fc` joins; the head's own output
    is used as it is, before the final norm (NxDI `models/model_base.py`).
    """

    def __init__(self, directory: Path, placement: Placement) -> None:
        config = read_config(directory)
        read, has = _reader(directory, placement)
        self._hidden_size = config.hidden_size
        self._embedding = read(eagle.EMBEDDING)
        bias = read(eagle.FC_BIAS) if has(eagle.FC_BIAS) else None
        self._fc = Linear(read(eagle.FC_WEIGHT), bias)
        self._norm = Norm(read(eagle3.NORM), config.rms_norm_eps)
        self._lm_head = Linear(read(eagle.LM_HEAD))
        self._decoder = _decoder(config, [Eagle3Layer(config, "layers.0.", read, has)], placement)

    def forward(
        self, tokens: Tensor, features: Tensor, starts: Sequence[int], first_slot: int = 0
    ) -> Tensor:
        """Own features [rows, n, hidden] from ids [rows, n] and features [rows, n, hidden] or
        [rows, n, 3 x hidden]."""
        if features.shape[-1] != self._hidden_size:
            features = self._fc(features)
        embedded = F.embedding(tokens, self._embedding)
        joined = torch.cat([embedded, features], dim=-1)  # embedding first
        return self._decoder(joined, starts, first_slot)[0]

    def logits(self, features: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        return self._lm_head(self._norm(features))


class DraftModel:
    """A language model as draft; it reads tokens alone."""

    def __init__(self, directory: Path, placement: Placement) -> None:
        self._model = Target(directory, placement)

    def forward(
        self, tokens: Tensor, features: Tensor, starts: Sequence[int], first_slot: int = 0
    ) -> Tensor:
        """Hidden states [rows, n, hidden] of ids [rows, n]; `features` are not used."""
        return self._model.hidden(tokens, starts, first_slot)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        return self._model.logits(hidden)


@dataclass(frozen=True)
class HeadKind:
    """How a draft is loaded, and which of the target's states are its features."""

    load: Callable[[Path, Placement], DraftModel | EagleHead | Eagle3Head]
    taps: Callable[[int], tuple[int, ...]]
    """Number of target layers -> layers whose inputs are tapped; none means the final states."""


HEADS = {
    "model": HeadKind(DraftModel, lambda num_target_layers: ()),
    "eagle": HeadKind(EagleHead, lambda num_target_layers: ()),
    "eagle3": HeadKind(Eagle3Head, eagle3.tapped_layers),
}


def _reader(directory: Path, placement: Placement) -> tuple[Read, Has]:
    files = CheckpointFiles(directory)

    def read(name: str) -> Tensor:
        return files.read(name).to(device=placement.device, dtype=placement.dtype)

    return read, files.tensors.__contains__


def _decoder(
    config: ModelConfig,
    layers: Sequence[Layer],
    placement: Placement,
    taps: tuple[int, ...] = (),
) -> Decoder:
    return Decoder(
        config,
        layers,
        num_slots=placement.num_slots,
        length=placement.length,
        dtype=placement.dtype,
        device=placement.device,
        taps=taps,
    )
