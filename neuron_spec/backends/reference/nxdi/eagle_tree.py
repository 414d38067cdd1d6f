"""NxDI's fused EAGLE speculation with a token tree; greedy only.

Source: `models/model_base.py`, `NeuronFusedSpecModel._eagle_tree_token_gen_forward`. The head's
entry of node n stands n places behind that of the root, and is rotated by its depth. After
verification the entries of the accepted path are made again, node n from the feature of node
n - 1: on a path that leaves the chain 0, 1, 2, … that is not its parent. Only proposals suffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.nxdi.acceptance import count_matches, postprocessed
from neuron_spec.backends.reference.nxdi.chance import GREEDY
from neuron_spec.backends.reference.nxdi.eagle import EagleContext
from neuron_spec.backends.reference.nxdi.graph import Inputs, Step
from neuron_spec.backends.reference.nxdi.passes import (
    Buckets,
    Draft,
    Pass,
    causal,
    run_draft,
    run_target,
    write,
)
from neuron_spec.backends.reference.nxdi.token_tree import TokenTree


@dataclass(frozen=True)
class _Drafted:
    """A step's nodes [rows, nodes], and the logits of the levels that were run."""

    nodes: Tensor
    logits: tuple[Tensor, ...]


class FusedEagleTree(EagleContext):
    """The fused graph of a target and an EAGLE head, drafting a tree. See `Graph`."""

    def __init__(
        self, target: Target, head: Draft, buckets: Buckets, *, num_slots: int, tree: TokenTree
    ) -> None:
        if buckets.speculation_length != tree.tree.num_nodes:
            raise ValueError("speculation_length is the number of the tree's nodes, the root too")
        super().__init__(target, head, buckets, num_slots=num_slots, chance=GREEDY)
        self._tree = tree

    def step(self, inputs: Inputs) -> Step:
        """See `Graph.step`."""
        positions, at = inputs.positions, self.clamped(inputs.positions)
        seen, feature = self.buckets.seen(positions.tolist()), self.features.get(at)
        drafted = self._drafted(inputs, at, feature, seen)
        logits, features = self._scores(drafted.nodes, positions, seen)
        argmaxes = logits.argmax(dim=-1)
        route, num_accepted = best_path(self._tree, drafted.nodes, argmaxes)
        order = torch.tensor(self._tree.permutations)[route]  # [rows, nodes]
        path = order[:, : self._tree.depth]
        nodes, tokens = drafted.nodes.gather(1, path), argmaxes.gather(1, path)
        before = torch.cat([feature, features[:, :-1]], dim=1)  # of node n - 1
        self._catch_up(nodes, positions, _rows_at(before, path), seen)
        stored = torch.tensor(self._tree.cache_places)[route]
        write(self.target.target.cache, self.buckets.seq_len, at[:, None] + stored)
        accepted = postprocessed(nodes[:, 1:], tokens, at)
        rows = torch.arange(len(at))
        last = features[rows, path[rows, num_accepted]]
        self.features.put(rows, accepted.next_positions, last)
        return Step(drafted.nodes[:, 1:], drafted.logits, argmaxes, logits, accepted)

    def decode(self, inputs: Inputs) -> Tensor:
        """See `Graph.decode`."""
        return self.target.decode(inputs)

    def _drafted(self, inputs: Inputs, at: Tensor, feature: Tensor, seen: Tensor) -> _Drafted:
        """Level by level: every node's best continuations, fed with its parent's output."""
        tree = self._tree
        nodes, all_logits = inputs.tokens[:, None], []
        for depth, level in enumerate(tree.levels[:-1]):
            one = self._level(nodes[:, level[0] :], inputs.positions, at, seen, depth)
            feature = self._run_level(one, at, level, feature)
            all_logits.append(self.head.logits(feature))
            width = max(tree.num_children[depth])
            best = all_logits[-1].topk(width, dim=-1).indices.flatten(1)
            nodes = torch.cat([nodes, best[:, list(tree.topk_picks[depth])]], dim=1)
            feature = feature[:, list(tree.feature_picks[depth])]
        return _Drafted(nodes, tuple(all_logits))

    def _level(
        self, tokens: Tensor, positions: Tensor, at: Tensor, seen: Tensor, depth: int
    ) -> Pass:
        """A level's pass: a node sees the text before the root, its ancestors, and itself."""
        level, num_nodes = self._tree.levels[depth], self._tree.tree.num_nodes
        above = self._tree.ancestors[list(level)].clone()  # [nodes of the level, all nodes]
        above[range(len(level)), list(level)] = False
        prior = seen[:, None].repeat(1, len(level), 1)
        columns = positions[:, None] - 1 + torch.arange(num_nodes)
        for row, places in enumerate(columns):
            prior[row][:, places] = above
        rotary = (at[:, None] - 1 + depth).expand(-1, len(level))
        return Pass(tokens, rotary, prior, torch.eye(len(level), dtype=torch.bool))

    def _run_level(
        self, inputs: Pass, at: Tensor, level: tuple[int, ...], features: Tensor
    ) -> Tensor:
        output = self.head.forward(inputs.tokens, features, inputs.starts(), 0, inputs.branches())
        places = at[:, None] - 1 + torch.tensor(level)
        write(self.head.cache, self.buckets.seq_len, places)
        return output

    def _scores(self, nodes: Tensor, positions: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The target over all nodes; its entries wait until the path is known."""
        rotary = positions[:, None] + torch.tensor(self._tree.tree.depths)
        inputs = Pass(nodes, rotary, seen[:, None], self._tree.ancestors)
        hidden, features = run_target(self.target.target, inputs)
        return self.target.target.logits(hidden), features

    def _catch_up(self, nodes: Tensor, positions: Tensor, features: Tensor, seen: Tensor) -> None:
        count = nodes.shape[1]
        places = positions[:, None] - 1 + torch.arange(count)
        run_draft(self.head, Pass(nodes, places, seen[:, None], causal(count)), features)


def best_path(tree: TokenTree, nodes: Tensor, target_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The first of the paths with the most matches, and their number: [rows] each.

    Args:
        nodes, target_tokens: [rows, nodes] the tree's ids and the target's argmax after each.
    """
    paths = torch.tensor(tree.paths)
    matches = count_matches(nodes[:, paths][..., 1:], target_tokens[:, paths][..., :-1])
    route = matches.argmax(dim=1)
    return route, matches.gather(1, route[:, None]).squeeze(1)


def _rows_at(items: Tensor, index: Tensor) -> Tensor:
    """[rows, n, width] at [rows, m] -> [rows, m, width]."""
    return items.gather(1, index[..., None].expand(-1, -1, items.shape[2]))
