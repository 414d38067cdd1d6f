"""Drafts out of the target's own checkpoint: its first layers, and its MTP layers.

What they have in common with the target is in memory once; each has a KV cache of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.loading import Placement, decoder_of, parameters_of
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.transformer import Layer, Norm
from neuron_spec.checkpoints.formats import mtp
from neuron_spec.drafters import CHAIN, Branches, ChainDrafter, Drafter, DraftShape, EagleDrafter


class EarlyExit:
    """The target's first layers, its final norm and its LM head as a language model.

    Sources: Draft & Verify (arXiv:2309.08168), LayerSkip (arXiv:2404.16710). A target that was not
    trained for it predicts little from its early layers.
    """

    def __init__(self, target: Target, num_layers: int, placement: Placement) -> None:
        self._target = target
        self._decoder = decoder_of(target.config, target.layers[:num_layers], placement)

    def drafter(self, shape: DraftShape = CHAIN) -> Drafter:
        """See `Head.drafter`."""
        return ChainDrafter(self.forward, self.logits, shape.grow, best=self._target.best)

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> Tensor:
        """Hidden states [rows, n, hidden] of ids [rows, n]; `features` are not used."""
        embedded = self._target.embed(tokens)
        return self._target.norm(self._decoder(embedded, starts, first_slot, branches)[0])

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        return self._target.logits(hidden)


class MtpLayer:
    """The first of the target's multi-token-prediction layers (DeepSeek-V3, arXiv:2412.19437).

    As in vLLM's `deepseek_mtp.py`: the embedding of the next token and the target's hidden state
    after its final norm, each with a norm, are joined, embedding first, and go through a decoder
    layer; for the token after, the layer's output before `shared_head.norm` stands in for the
    hidden state. (SGLang and TensorRT-LLM pass it on after that norm. Only acceptance differs.)
    vLLM zeroes the embedding of the pair at position 0; here it is kept.
    """

    def __init__(self, target: Target, directory: Path, placement: Placement) -> None:
        config = target.config
        prefix = mtp.prefixes(config)[0]
        parameters = parameters_of(directory, placement)
        read, has = parameters.read, parameters.has

        def is_copy(name: str, original: str) -> bool:
            """The published layers hold copies of what they share with the target."""
            return not has(name) or torch.equal(read(name), read(original))

        def norm(name: str) -> Norm:
            return Norm(read(prefix + name), config.rms_norm_eps)

        embedding = "model.embed_tokens.weight"
        head = embedding if config.tie_word_embeddings else "lm_head.weight"
        self._target = target
        own_embedding, own_head = prefix + mtp.EMBEDDING, prefix + mtp.LM_HEAD
        self._embedding = None if is_copy(own_embedding, embedding) else read(own_embedding)
        self._lm_head = None if is_copy(own_head, head) else parameters.product([read(own_head)])
        self._embedding_norm, self._hidden_norm = norm(mtp.EMBEDDING_NORM), norm(mtp.HIDDEN_NORM)
        self._output_norm = norm(mtp.OUTPUT_NORM)
        self._projection = parameters.product([read(prefix + mtp.PROJECTION)])
        self._decoder = decoder_of(config, [Layer(config, prefix, parameters)], placement)

    def drafter(self, shape: DraftShape = CHAIN) -> Drafter:
        """See `Head.drafter`."""
        return EagleDrafter(self.forward, self.logits, shape.grow)

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> Tensor:
        """Next states [rows, n, hidden] from ids [rows, n] and states [rows, n, hidden]."""
        if self._embedding is None:
            embedded = self._target.embed(tokens)
        else:
            embedded = F.embedding(tokens, self._embedding)
        parts = (self._embedding_norm(embedded), self._hidden_norm(features))
        joined = self._projection(torch.cat(parts, dim=-1))
        return self._decoder(joined, starts, first_slot, branches)[0]

    def logits(self, states: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        normed = self._output_norm(states)
        return self._lm_head(normed) if self._lm_head else self._target.logits(normed)
