"""The target and the draft heads as torch objects, loaded from prepared checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.cache import KVCache
from neuron_spec.backends.reference.loading import Placement, decoder_of, parameters_of
from neuron_spec.backends.reference.parallel_heads import HydraHeads, MedusaHeads
from neuron_spec.backends.reference.pinned import PinnedWindow
from neuron_spec.backends.reference.transformer import Eagle3Layer, Layer, Norm
from neuron_spec.checkpoints.formats import eagle, eagle3
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.drafters import CHAIN, Branches, ChainDrafter, Drafter, DraftShape, EagleDrafter


class Target:
    """A causal language model.

    Its features, what a draft head reads, are the hidden states after the final norm, or with
    `taps` the inputs of these layers side by side.
    """

    def __init__(
        self, directory: Path, placement: Placement, *, taps: tuple[int, ...] = ()
    ) -> None:
        config = read_config(directory)
        parameters = parameters_of(directory, placement)
        self.config = config
        self._embedding = parameters.read("model.embed_tokens.weight")
        self.layers = [
            Layer(config, f"model.layers.{index}.", parameters)
            for index in range(config.num_hidden_layers)
        ]
        self.norm = Norm(parameters.read("model.norm.weight"), config.rms_norm_eps)
        is_tied = config.tie_word_embeddings
        head = self._embedding if is_tied else parameters.read("lm_head.weight")
        self._lm_head = parameters.product([head])
        self._decoder = decoder_of(config, self.layers, placement, taps)

    def hidden(
        self,
        tokens: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states after the final norm [rows, n, hidden] and features [rows, n, feature] of
        ids [rows, n]; with `branches` the ids are nodes of a tree."""
        return self._read(*self._decoder(self.embed(tokens), starts, first_slot, branches))

    def hidden_through(self, tokens: Tensor, window: PinnedWindow) -> tuple[Tensor, Tensor]:
        """The same of ids [rows, n] that stand in a pinned window."""
        return self._read(*self._decoder.run(self.embed(tokens), window))

    def _read(self, output: Tensor, tapped: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden = self.norm(output)
        return hidden, hidden if tapped is None else tapped

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] ids -> [..., hidden]."""
        return F.embedding(tokens, self._embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        return self._lm_head(hidden)

    def best(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [...] the likeliest ids."""
        return self._lm_head.best(hidden)

    def keep(self, slot: int, origin: int, path: Sequence[int]) -> None:
        """Of a tree whose root is at position `origin`, keep one branch; see `KVCache.keep`."""
        self._decoder.cache.keep(slot, origin, path)

    @property
    def cache(self) -> KVCache:
        """The KV cache."""
        return self._decoder.cache


class EagleHead:
    """An EAGLE v1 draft head, prepared (with its own copies of embedding and LM head).

    With `layers.0.input_layernorm` in the file the norm is applied to fc's output, as NxDI does
    under `enable_eagle_draft_input_norm` (`models/llama/modeling_llama.py`).
    """

    def __init__(self, directory: Path, placement: Placement) -> None:
        config = read_config(directory)
        parameters = parameters_of(directory, placement)
        self._embedding = parameters.read(eagle.EMBEDDING)
        self._fc = parameters.linear(eagle.FC)
        self._lm_head = parameters.product([parameters.read(eagle.LM_HEAD)])
        self._decoder = decoder_of(config, [Layer(config, "layers.0.", parameters)], placement)

    @property
    def cache(self) -> KVCache:
        """The KV cache."""
        return self._decoder.cache

    def drafter(self, shape: DraftShape = CHAIN) -> Drafter:
        """See `Head.drafter`."""
        return EagleDrafter(self.forward, self.logits, shape.grow, best=self.best)

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> Tensor:
        """Next features [rows, n, hidden] from ids [rows, n] and features [rows, n, hidden]."""
        embedded = F.embedding(tokens, self._embedding)
        joined = self._fc(torch.cat([embedded, features], dim=-1))  # embedding first
        return self._decoder(joined, starts, first_slot, branches)[0]

    def logits(self, features: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]; no final norm in EAGLE v1."""
        return self._lm_head(features)

    def best(self, features: Tensor) -> Tensor:
        """[..., hidden] -> [...] the likeliest ids."""
        return self._lm_head.best(features)


class Eagle3Head:
    """An EAGLE-3 draft head, prepared: its LM head has the target's vocabulary.

    True features are three of the target's hidden states, which `fc` joins; the head's own output
    is used as it is, before the final norm (NxDI `models/model_base.py`).
    """

    def __init__(self, directory: Path, placement: Placement) -> None:
        config = read_config(directory)
        parameters = parameters_of(directory, placement)
        self._hidden_size = config.hidden_size
        self._embedding = parameters.read(eagle.EMBEDDING)
        self._fc = parameters.linear(eagle.FC)
        self._norm = Norm(parameters.read(eagle3.NORM), config.rms_norm_eps)
        self._lm_head = parameters.product([parameters.read(eagle.LM_HEAD)])
        layer = Eagle3Layer(config, "layers.0.", parameters)
        self._decoder = decoder_of(config, [layer], placement)

    @property
    def cache(self) -> KVCache:
        """The KV cache."""
        return self._decoder.cache

    def drafter(self, shape: DraftShape = CHAIN) -> Drafter:
        """See `Head.drafter`."""
        return EagleDrafter(self.forward, self.logits, shape.grow, best=self.best)

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> Tensor:
        """Own features [rows, n, hidden] from ids [rows, n] and features [rows, n, hidden] or
        [rows, n, 3 x hidden]."""
        if features.shape[-1] != self._hidden_size:
            features = self._fc(features)
        embedded = F.embedding(tokens, self._embedding)
        joined = torch.cat([embedded, features], dim=-1)  # embedding first
        return self._decoder(joined, starts, first_slot, branches)[0]

    def logits(self, features: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        return self._lm_head(self._norm(features))

    def best(self, features: Tensor) -> Tensor:
        """[..., hidden] -> [...] the likeliest ids."""
        return self._lm_head.best(self._norm(features))


class DraftModel:
    """A language model as draft; it reads tokens alone."""

    def __init__(self, directory: Path, placement: Placement) -> None:
        self._model = Target(directory, placement)

    @property
    def cache(self) -> KVCache:
        """The KV cache."""
        return self._model.cache

    def drafter(self, shape: DraftShape = CHAIN) -> Drafter:
        """See `Head.drafter`."""
        return ChainDrafter(self.forward, self.logits, shape.grow, best=self.best)

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> Tensor:
        """Hidden states [rows, n, hidden] of ids [rows, n]; `features` are not used."""
        return self._model.hidden(tokens, starts, first_slot, branches)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        return self._model.logits(hidden)

    def best(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [...] the likeliest ids."""
        return self._model.best(hidden)


class Head(Protocol):
    """A loaded draft."""

    def drafter(self, shape: DraftShape = CHAIN) -> Drafter:
        """The drafter that drafts with it."""


@dataclass(frozen=True)
class HeadKind:
    """How a draft is loaded, and which of the target's states are its features."""

    load: Callable[[Path, Placement], Head]
    taps: Callable[[Path, int], tuple[int, ...]] = lambda directory, num_target_layers: ()
    """(draft's directory, number of target layers) -> layers whose inputs are tapped; none means
    the final states."""


def _eagle3_taps(directory: Path, num_target_layers: int) -> tuple[int, ...]:
    return eagle3.feature_layers(read_config(directory).raw, num_target_layers) or ()


HEADS = {
    "model": HeadKind(DraftModel),
    "medusa": HeadKind(MedusaHeads),
    "hydra": HeadKind(HydraHeads),
    "eagle": HeadKind(EagleHead),
    "eagle3": HeadKind(Eagle3Head, _eagle3_taps),
}
