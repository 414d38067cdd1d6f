"""NxDI's Medusa decoding: batch 1, greedy, a tree of ten best tokens a head.

Sources: `utils/hf_adapter.py`, `_medusa_assisted_decoding`; `modules/kvcache/kv_cache_manager.py`,
`get_kv_by_layer_id`; FasterDecoding/Medusa `medusa/model/utils.py`, whose tables NxD shares.

Two departures of the recorded runs are kept: the decode step gathers its hidden states from 0 on,
where NxDI starts at a position and leaves the tensor; and with `keeps_accepted` the accepted
entries stay where they were moved to. NxDI moves them for one step and stores them nowhere, so that
later steps see the tree's first nodes in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.nxdi.acceptance import count_matches
from neuron_spec.backends.reference.nxdi.passes import (
    Buckets,
    Pass,
    causal,
    context_branches,
    last_place,
    padded,
    run_target,
    write,
)
from neuron_spec.backends.reference.parallel_heads import MedusaHeads
from neuron_spec.trees import Tree

TOP_K = 10
"""Best tokens a head that the tables assume, whatever `global_topk` is."""
_ABSENT = -1


@dataclass(frozen=True)
class MedusaTables:
    """A tree of rank paths as index tables.

    Attributes:
        candidate_places: [nodes] of every node in the list of the base token and each head's ten.
        depths: [nodes].
        mask: [nodes, nodes] bool.
        paths: [leaves, depth + 1] nodes from the root to every leaf, the last leaf first; -1 where
            a path is shorter.
    """

    candidate_places: Tensor
    depths: Tensor
    mask: Tensor
    paths: Tensor

    @classmethod
    def of(cls, tree: Tree) -> MedusaTables:
        """The tables of a tree."""
        pairs = list(zip(tree.depths, tree.ranks, strict=True))[1:]
        places = [0, *(1 + TOP_K * (depth - 1) + rank for depth, rank in pairs)]
        routes = [list(route) for route in reversed(tree.leaf_routes)]
        length = max(map(len, routes))
        paths = [route + [_ABSENT] * (length - len(route)) for route in routes]
        return cls(
            torch.tensor(places),
            torch.tensor(tree.depths),
            torch.tensor(tree.attention_mask),
            torch.tensor(paths),
        )


@dataclass(frozen=True)
class MedusaState:
    """What stands between two steps.

    Attributes:
        sequence: prompt and accepted tokens.
        top: [heads + 1, 10] best tokens of the target and of every head after the sequence.
        entries: places in the cache of the last accepted tokens.
        length: of the sequence before the last step; NxDI's `cur_len`.
    """

    sequence: tuple[int, ...]
    top: Tensor
    entries: tuple[int, ...]
    length: int

    @property
    def num_nonzero(self) -> int:
        """The sequence's length as NxDI counts it: token 0 is not counted."""
        return sum(token != 0 for token in self.sequence)


@dataclass(frozen=True)
class MedusaStep:
    """What a step gives.

    Attributes:
        nodes: [nodes] the tree's ids.
        candidates: [leaves, depth + 1] ids on every path, 0 where a path is shorter.
        target_tokens: [leaves, depth + 1] the target's best tokens on every path; where a path is
            shorter, those of the last node.
        logits: [nodes, heads + 1, vocab] of the target and of every head.
        path, num_accepted: which path was taken, and how far.
        gathered, moved: places in the cache that were read as the places `moved`.
        positions: [nodes].
    """

    nodes: Tensor
    candidates: Tensor
    target_tokens: Tensor
    logits: Tensor
    path: int
    num_accepted: int
    gathered: tuple[int, ...]
    moved: tuple[int, ...]
    positions: Tensor
    state: MedusaState

    @property
    def emitted(self) -> tuple[int, ...]:
        """The base token and the accepted ones; the token after them opens the next step."""
        return tuple(self.candidates[self.path, : self.num_accepted + 1].tolist())


class Medusa:
    """A target with Medusa heads, compiled by NxDI."""

    def __init__(
        self,
        target: Target,
        heads: MedusaHeads,
        buckets: Buckets,
        *,
        tree: Tree,
        keeps_accepted: bool = False,
    ) -> None:
        self._target, self._heads, self.buckets = target, heads, buckets
        self.tables, self._num_heads = MedusaTables.of(tree), heads.num_heads
        self._keeps_accepted = keeps_accepted

    @torch.inference_mode()
    def encode(self, prompt: Sequence[int]) -> tuple[MedusaState, Tensor]:
        """Context encoding; also the logits [heads + 1, vocab] after the prompt."""
        tokens, positions = padded(prompt, self.buckets)
        hidden, _ = self._target.hidden(tokens, [0], 0, context_branches(positions))
        logits = self._logits(hidden[0, last_place(positions)])
        state = MedusaState(tuple(prompt), logits.topk(TOP_K, dim=-1).indices, (), 0)
        length = state.num_nonzero
        return replace(state, entries=self._span(length), length=length), logits

    @torch.inference_mode()
    def step(self, state: MedusaState) -> MedusaStep:
        """Draft a tree, score it, and take the path with the most matches."""
        tables, length = self.tables, state.num_nonzero
        listed = torch.cat([state.top[0, :1], state.top[1:].flatten()])
        nodes = listed[tables.candidate_places]
        candidates = torch.where(tables.paths == _ABSENT, 0, nodes[tables.paths])
        moved = self._span(state.length)
        gathered = (*state.entries, *moved[len(state.entries) :])
        logits = self._scores(nodes, length, gathered, moved)
        top = logits.topk(TOP_K, dim=-1).indices  # [nodes, heads + 1, 10]
        target_tokens = top[tables.paths][:, :, 0, 0]
        matches = count_matches(candidates[:, 1:], target_tokens[:, :-1])
        path = int(matches.argmax())
        num_accepted = int(matches[path])
        taken = tables.paths[path, : num_accepted + 1]
        after = MedusaState(
            (*state.sequence[:length], *candidates[path, : num_accepted + 1].tolist()),
            top[taken[-1]],
            tuple((taken + length).tolist()),
            length,
        )
        positions = length + tables.depths
        return MedusaStep(
            nodes, candidates, target_tokens, logits, path, num_accepted, gathered, moved,
            positions, after,
        )  # fmt: skip

    @torch.inference_mode()
    def decode(self, state: MedusaState) -> MedusaState:
        """One token of the target alone, as a model compiled without heads."""
        length, token = state.num_nonzero, state.top[0, :1]
        place = torch.tensor([[length]])
        inputs = Pass(token[None], place, self.buckets.seen([length])[:, None], causal(1))
        hidden, _ = run_target(self._target, inputs)
        write(self._target.cache, self.buckets.seq_len, place)
        sequence = (*state.sequence, int(token))
        top = self._logits(hidden[0, 0]).topk(TOP_K, dim=-1).indices
        return MedusaState(sequence, top, self._span(length), length)

    def _span(self, start: int) -> tuple[int, ...]:
        """Places of as many accepted tokens as a step can have."""
        return tuple(range(start, start + self._num_heads + 1))

    def _scores(
        self, nodes: Tensor, length: int, gathered: Sequence[int], moved: Sequence[int]
    ) -> Tensor:
        """[nodes, heads + 1, vocab]; the tree's entries are stored behind the sequence."""
        cache, seq_len = self._target.cache, self.buckets.seq_len
        tensors = (*cache.keys, *cache.values)
        before = [tensor[0, :, list(moved)] for tensor in tensors]
        for tensor in tensors:
            tensor[0, :, list(moved)] = tensor[0, :, list(gathered)]
        rotary = length + self.tables.depths
        seen = self.buckets.seen([length])[:, None]
        hidden, _ = run_target(
            self._target, Pass(nodes[None], rotary[None], seen, self.tables.mask)
        )
        if not self._keeps_accepted:
            for tensor, old in zip(tensors, before, strict=True):
                tensor[0, :, list(moved)] = old
        write(cache, seq_len, length + torch.arange(len(nodes))[None])
        return self._logits(hidden[0])

    def _logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., heads + 1, vocab]."""
        own = self._target.logits(hidden)[..., None, :]
        return torch.cat([own, self._heads.head_logits(hidden, self._num_heads)], dim=-2)


@dataclass(frozen=True)
class MedusaRun:
    """One output, prompt included, and its steps."""

    sequence: tuple[int, ...]
    steps: tuple[MedusaStep, ...]


def generate_medusa(
    medusa: Medusa, prompt: Sequence[int], *, max_new_tokens: int, eos_token_id: int | None = None
) -> MedusaRun:
    """NxDI's Medusa loop: until more than `max_new_tokens` came, or as many steps were made.

    The EOS id is compared with the number of new tokens, not with the tokens: a run ends when it
    has exactly that many, and does not end at an EOS.
    """
    state, _ = medusa.encode(prompt)
    steps: list[MedusaStep] = []
    num_new = 0
    while len(steps) < max_new_tokens:
        steps.append(medusa.step(state))
        state = steps[-1].state
        num_new += len(steps[-1].emitted)
        if num_new == eos_token_id or num_new > max_new_tokens:
            break
    return MedusaRun(state.sequence, tuple(steps))
