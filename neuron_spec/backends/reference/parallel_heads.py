"""Heads that draft several tokens from one state of the target: Medusa and Hydra.

Sources: FasterDecoding/Medusa `medusa/model/medusa_model.py`, NxDI
`models/llama/modeling_llama.py`; zankner/Hydra `hydra/model/hydra_heads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.linear import Linear
from neuron_spec.backends.reference.loading import Placement, decoder_of, parameters_of
from neuron_spec.backends.reference.transformer import Layer, Norm
from neuron_spec.checkpoints.formats import eagle, hydra, medusa
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.checkpoints.tensors import DRAFT_FILES, CheckpointFiles
from neuron_spec.drafters import CHAIN, Branches, Drafter, DraftShape, EagleDrafter, MedusaDrafter


class MedusaHeads:
    """Medusa heads, prepared: each a block and a projection, which several may share."""

    def __init__(self, directory: Path, placement: Placement) -> None:
        files = CheckpointFiles(directory, DRAFT_FILES)
        parameters = parameters_of(directory, placement, DRAFT_FILES)
        read = parameters.read
        shapes = {name: tensor.shape for name, tensor in files.tensors.items()}
        heads = range(medusa.num_heads(shapes))
        self._blocks = [
            parameters.product(
                [read(medusa.block(head, "weight"))], [read(medusa.block(head, "bias"))]
            )
            for head in heads
        ]
        stored = [files.read(medusa.projection(head)) for head in heads]
        is_shared = len({tensor.data_ptr() for tensor in stored}) == 1
        self._projections = [
            parameters.product([read(medusa.projection(head))])
            for head in (heads[:1] if is_shared else heads)
        ]

    @property
    def num_heads(self) -> int:
        """Heads in the checkpoint."""
        return len(self._blocks)

    def drafter(self, shape: DraftShape = CHAIN) -> Drafter:
        """See `Head.drafter`."""
        return MedusaDrafter(self.head_logits, num_heads=self.num_heads, tree=shape.tree)

    def head_logits(self, features: Tensor, num_heads: int) -> Tensor:
        """Logits [..., num_heads, vocab] of the first heads, from features [..., hidden]."""
        states = [features + F.silu(block(features)) for block in self._blocks[:num_heads]]
        if len(self._projections) == 1:  # one product for all heads
            return self._projections[0](torch.stack(states, dim=-2))
        pairs = zip(self._projections, states, strict=False)
        return torch.stack([projection(state) for projection, state in pairs], dim=-2)


class HydraHeads:
    """Hydra or Hydra++ heads, prepared (with a copy of the target's embedding).

    The state of a chain is the target's feature and the embeddings of the tokens after it, side by
    side; its width tells which head is next.
    """

    def __init__(self, directory: Path, placement: Placement) -> None:
        config = read_config(directory)
        parameters = parameters_of(directory, placement)
        shapes = {name: t.shape for name, t in CheckpointFiles(directory).tensors.items()}
        arch = hydra.architecture(config.raw)
        self._hidden_size = config.hidden_size
        self._is_grounded = hydra.is_grounded(config.raw)
        self._embedding = parameters.read(eagle.EMBEDDING)

        def linear(prefix: str) -> Linear:
            return parameters.linear(prefix.removesuffix("."))

        heads = range(hydra.num_heads(shapes))
        num_layers = hydra.num_layers(arch, shapes)
        firsts = [hydra.block(arch, head, 0) for head in heads]
        self._skips = [
            linear(f"{block}res_connection.") if self._is_grounded else None for block in firsts
        ]
        self._blocks = [
            [linear(f"{hydra.block(arch, head, layer)}linear.") for layer in range(num_layers)]
            for head in heads
        ]
        self._projections = [linear(hydra.projection(arch, head)) for head in heads]
        self._prefix = None
        if arch == hydra.PREFIX_MLP:
            layer = Layer(config, hydra.PREFIX_LAYER, parameters)
            self._prefix = decoder_of(config, [layer], placement)
            self._prefix_norm = Norm(parameters.read(hydra.PREFIX_NORM), config.rms_norm_eps)

    def drafter(self, shape: DraftShape = CHAIN) -> Drafter:
        """See `Head.drafter`: fed as an EAGLE head is, with a feature and the token after it."""
        return EagleDrafter(self.forward, self.logits, shape.grow)

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> Tensor:
        """States [rows, n, width + hidden] from ids [rows, n] and features or states
        [rows, n, width]; the prefix layer runs over features alone, so never over a tree."""
        if self._prefix and features.shape[-1] == self._hidden_size:
            features = self._prefix_norm(self._prefix(features, starts, first_slot)[0])
        return torch.cat([features, F.embedding(tokens, self._embedding)], dim=-1)

    def logits(self, states: Tensor) -> Tensor:
        """[..., (i + 2) x hidden] -> [..., vocab] of head i."""
        head = states.shape[-1] // self._hidden_size - 2
        skip, (first, *others) = self._skips[head], self._blocks[head]
        x = states if skip else states[..., : self._hidden_size]
        x = (skip(x) if skip else x) + F.silu(first(x))
        for block in others:
            x = x + F.silu(block(x))
        return self._projections[head](x)
