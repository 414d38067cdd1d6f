"""What the double's graphs compute: the emulation of NxDI on the reference models.

Outputs are those of `NeuronFusedSpecModel._cte_postprocessor` and `_tkg_postprocessor`, of
`NeuronBaseModel.forward`, and of `_medusa_forward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import HEADS, Target
from neuron_spec.backends.reference.nxdi.chance import Chance, drawn, first_token
from neuron_spec.backends.reference.nxdi.eagle import FusedEagle
from neuron_spec.backends.reference.nxdi.eagle_tree import FusedEagleTree
from neuron_spec.backends.reference.nxdi.fused import FusedDraft, FusedTarget
from neuron_spec.backends.reference.nxdi.graph import Graph, Inputs
from neuron_spec.backends.reference.nxdi.passes import (
    Buckets,
    Pass,
    context_branches,
    last_place,
    padded,
    run_target,
    write,
)
from neuron_spec.backends.reference.nxdi.sampler import Sampling
from neuron_spec.backends.reference.nxdi.token_tree import TokenTree
from neuron_spec.backends.reference.parallel_heads import MedusaHeads
from neuron_spec.trees import Tree

_TOP_K = 10


class Graphs(Protocol):
    """The graphs of one application."""

    def encode(self, slot: int, prompt: list[int], params: Tensor) -> Any:
        """Context encoding."""

    def step(self, ids: Tensor, positions: Tensor, params: Tensor) -> Any:
        """The decoding graph, all slots; ids [slots, n], positions [slots] of the first."""

    def medusa(
        self, ids: Tensor, mask: Tensor, positions: Tensor, accepted: Tensor, current: Tensor,
        tree_mask: Tensor, scatter: Tensor,
    ) -> Tensor:  # fmt: skip
        """The Medusa graph."""


def graphs_of(application: Any, draw: Any) -> Graphs:
    """Those that an application's configuration has NxDI trace."""
    config = application.neuron_config
    buckets = Buckets(
        max(config.speculation_length, 1),
        (config.context_encoding_buckets or [config.max_context_length])[-1],
        (config.token_generation_buckets or [config.max_length])[-1],
    )
    folder = Path(application.model_path)
    placement = _placement(config, buckets, config.medusa_speculation_length)
    if config.is_medusa:
        heads = MedusaHeads(folder, placement)
        return MedusaGraphs(Target(folder, placement), heads, buckets)
    chance = _chance(config, draw)
    if not config.enable_fused_speculation:
        target = FusedTarget(Target(folder, placement), buckets)
        return PlainGraphs(target, chance, samples=config.on_device_sampling_config is not None)
    draft = Path(application.fused_spec_config.draft_model_path)
    graph = _fused(config, (folder, draft), placement, buckets, chance)
    return FusedGraphs(graph, buckets.speculation_length)


def _placement(config: Any, buckets: Buckets, num_nodes: int) -> Placement:
    length = buckets.cache_length + num_nodes
    return Placement(config.max_batch_size, length, torch.float32, torch.device("cpu"))


def _chance(config: Any, draw: Any) -> Chance:
    sampling = config.on_device_sampling_config
    if sampling is None or not sampling.do_sample:
        return Chance()
    found = Sampling(True, sampling.dynamic, sampling.deterministic, sampling.global_topk)
    return Chance(found, draw)


def _fused(
    config: Any, folders: tuple[Path, Path], placement: Placement, buckets: Buckets, chance: Chance
) -> Graph:
    method = "model"
    if config.enable_eagle_speculation:
        method = "eagle3" if config.is_eagle3 else "eagle"
    layers = 8 if method == "eagle3" else 0
    taps = HEADS[method].taps(folders[1], layers) if layers else ()
    target = Target(folders[0], placement, taps=taps)
    draft: Any = HEADS[method].load(folders[1], placement)
    if method == "model":
        return FusedDraft(target, draft, buckets)
    slots = config.max_batch_size
    if config.token_tree_config:
        tree = TokenTree(Tree.from_children(config.token_tree_config))
        return FusedEagleTree(target, draft, buckets, num_slots=slots, tree=tree)
    return FusedEagle(target, draft, buckets, num_slots=slots, chance=chance)


class FusedGraphs:
    """Context encoding and fused speculation."""

    def __init__(self, graph: Graph, length: int) -> None:
        self._graph, self._length = graph, length

    @torch.inference_mode()
    def encode(self, slot: int, prompt: list[int], params: Tensor) -> list[Tensor]:
        token = self._graph.encode(slot, prompt, params[0]).token
        accepted = torch.tensor([[token, *[-1] * (self._length - 1)]], dtype=torch.int32)
        return _fused_outputs(accepted, accepted[:, 0], torch.tensor([len(prompt)]))

    @torch.inference_mode()
    def step(self, ids: Tensor, positions: Tensor, params: Tensor) -> list[Tensor]:
        assert ids.shape[1] == 1, "a fused step has one input"
        found = self._graph.step(Inputs(ids[:, 0].long(), positions.long(), params)).accepted
        return _fused_outputs(found.tokens.int(), found.next_tokens, found.next_positions)

    def medusa(self, *args: Any) -> Tensor:
        raise AssertionError("no Medusa graph")


def _fused_outputs(accepted: Tensor, tokens: Tensor, positions: Tensor) -> list[Tensor]:
    mask = torch.arange(int(positions.max())) < positions[:, None]
    return [accepted, tokens[:, None].int(), mask.int(), positions[:, None].int()]


class PlainGraphs:
    """Context encoding, and a graph that scores a fixed number of positions."""

    def __init__(self, target: FusedTarget, chance: Chance, *, samples: bool) -> None:
        self._target, self._chance, self._samples = target, chance, samples

    @torch.inference_mode()
    def encode(self, slot: int, prompt: list[int], params: Tensor) -> Tensor:
        logits, _ = self._target.context(slot, *padded(prompt, self._target.buckets))
        if self._samples:
            return torch.tensor([first_token(logits, params[0], self._chance)])
        return logits[None, None].float()

    @torch.inference_mode()
    def step(self, ids: Tensor, positions: Tensor, params: Tensor) -> Tensor:
        width = self._target.buckets.speculation_length
        assert ids.shape[1] == width, f"{ids.shape[1]} inputs of a graph of {width}"
        seen = self._target.buckets.seen(positions.tolist())
        logits, _ = self._target.verify(ids.long(), positions.long(), seen)
        if not self._samples:
            return logits.float()
        if not self._chance.sampling.do_sample:
            return logits[:, -1].argmax(dim=-1).int()
        return drawn(logits[:, -1], params, self._chance).int()

    def medusa(self, *args: Any) -> Tensor:
        raise AssertionError("no Medusa graph")


class MedusaGraphs:
    """Context encoding and the tree; nothing of NxDI's departures is mended."""

    def __init__(self, target: Target, heads: MedusaHeads, buckets: Buckets) -> None:
        self._target, self._heads, self._buckets = target, heads, buckets

    @torch.inference_mode()
    def encode(self, slot: int, prompt: list[int], params: Tensor) -> Tensor:
        tokens, positions = padded(prompt, self._buckets)
        hidden, _ = self._target.hidden(tokens, [0], slot, context_branches(positions))
        return self._top(hidden[0, last_place(positions)])[:, None]

    def step(self, *args: Any) -> Tensor:
        raise AssertionError("no other decoding graph")

    @torch.inference_mode()
    def medusa(
        self, ids: Tensor, mask: Tensor, positions: Tensor, accepted: Tensor, current: Tensor,
        tree_mask: Tensor, scatter: Tensor,
    ) -> Tensor:  # fmt: skip
        num_moved = self._heads.num_heads + 1
        assert accepted.shape == current.shape == (1, num_moved)
        assert tree_mask.shape == (1, ids.shape[1], ids.shape[1])
        assert ids.shape == positions.shape == scatter.shape
        before = self._move(current[0].tolist(), accepted[0].tolist())
        seen = pad(mask.bool(), (0, self._buckets.seq_len - mask.shape[1]))
        one = Pass(ids.long(), positions.long(), seen[:, None], tree_mask[0].bool())
        hidden, _ = run_target(self._target, one)
        for tensor, old in before:  # moved for this step alone
            tensor[0, :, current[0].tolist()] = old
        write(self._target.cache, self._buckets.seq_len, scatter.long())
        first = int(positions.min())
        index = torch.arange(first, first + ids.shape[1])[None, :, None]
        gathered = torch.gather(hidden, 1, index.expand(1, -1, hidden.shape[2]))
        return self._top(gathered[0])[:, None]

    def _move(self, to: Sequence[int], of: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        cache = self._target.cache
        before = [(t, t[0, :, list(to)].clone()) for t in (*cache.keys, *cache.values)]
        for tensor, _ in before:
            tensor[0, :, list(to)] = tensor[0, :, list(of)].clone()
        return before

    def _top(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [heads + 1, ..., 10] ids."""
        own = self._target.logits(hidden)[None]
        heads = self._heads.head_logits(hidden, self._heads.num_heads).movedim(-2, 0)
        return torch.cat([own, heads]).topk(_TOP_K, dim=-1).indices.int()
