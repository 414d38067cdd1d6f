"""How a draft grows below a row's last token: as a chain, a tree of fixed shape, or one that
follows the draft's confidence.

Pure of any state but the draft's cache, in which everything grown here is overwritten later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from neuron_spec.drafters.base import Branches, Choose, Proposal, choose_best
from neuron_spec.trees import ROOT, Tree


class Forward(Protocol):
    """Runs a draft."""

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> Tensor:
        """Output features [rows, n, hidden] of ids [rows, n] and features [rows, n, feature] whose
        row i is stored from position `starts[i]` on, in slot `first_slot` + i; with `branches`
        they are nodes of a tree."""


Logits = Callable[[Tensor], Tensor]
"""hidden [..., hidden] -> logits [..., vocab]."""
Best = Callable[[Tensor], Tensor]
"""hidden [..., hidden] -> the likeliest ids [...]."""


@dataclass(frozen=True)
class Root:
    """What growth starts from.

    Attributes:
        feature: [rows, 1, hidden] the draft's output at each row's last token.
        ends: the position after it, row by row.
    """

    forward: Forward
    logits: Logits
    best: Best
    feature: Tensor
    ends: Sequence[int]


Grow = Callable[[Root, int, Choose], Proposal]
"""(root, most tokens a row, how to choose) -> what was drafted."""


def grow_chain(root: Root, num_draft_tokens: int, choose: Choose) -> Proposal:
    """Each proposal is the input of the next."""
    feature = root.feature
    tokens: list[Tensor] = []
    probs: list[Tensor | None] = []
    for depth in range(num_draft_tokens):
        if depth:
            starts = [end + depth - 1 for end in root.ends]
            feature = root.forward(tokens[-1], feature, starts, 0)
        if choose is choose_best:
            chosen, drawn_from = root.best(feature), None
        else:
            chosen, drawn_from = choose(root.logits(feature))
        tokens.append(chosen)
        probs.append(drawn_from)
    drawn = [p for p in probs if p is not None]
    return Proposal(torch.cat(tokens, dim=1), probs=torch.cat(drawn, dim=1) if drawn else None)


@dataclass(frozen=True)
class GrowTree:
    """A tree of fixed shape, level by level: a node's children are its best continuations.

    The shape is NxDI's token tree (`modules/eagle/token_tree.py`) or a Medusa tree.
    """

    tree: Tree

    def __call__(self, root: Root, num_draft_tokens: int, choose: Choose) -> Proposal:
        """See `Grow`; with fewer tokens than the tree has, its first ones."""
        tree = self.tree.first(num_draft_tokens)
        rows = root.feature.shape[0]
        device = root.feature.device
        tokens = torch.zeros(rows, tree.num_nodes, dtype=torch.long, device=device)
        outputs = {0: root.feature}  # node -> [rows, 1, hidden]
        run: list[int] = []  # nodes in the order of their cache entries
        for level in tree.inner_levels:
            if level != (ROOT,):
                outputs |= self._run(root, tree, tokens, outputs, run, level)
            logits = torch.cat([root.logits(outputs[node]) for node in level], dim=1)
            for place, node in enumerate(level):
                children = tree.children[node]
                width = 1 + max(tree.ranks[child] for child in children)
                best = logits[:, place].topk(width, dim=-1).indices  # [rows, width]
                for child in children:
                    tokens[:, child] = best[:, tree.ranks[child]]
        parents = torch.tensor(tree.parents[1:], device=device).expand(rows, -1)
        return Proposal(tokens[:, 1:], parents=parents)

    @staticmethod
    def _run(
        root: Root,
        tree: Tree,
        tokens: Tensor,
        outputs: dict[int, Tensor],
        run: list[int],
        level: Sequence[int],
    ) -> dict[int, Tensor]:
        """Outputs of one level's nodes, which join the cache after those that ran before."""
        first = len(run)
        run += level
        mask = torch.zeros(len(level), len(run), dtype=torch.bool, device=tokens.device)
        for place, node in enumerate(level):
            mask[place, [run.index(above) for above in tree.route(node)[1:]]] = True
        depths = torch.tensor([tree.depths[node] - 1 for node in level], device=tokens.device)
        rows = tokens.shape[0]
        new = Branches(root.ends, depths.expand(rows, -1), mask.expand(rows, -1, -1))
        features = torch.cat([outputs[tree.parents[node]] for node in level], dim=1)
        starts = [end + first for end in root.ends]
        output = root.forward(tokens[:, list(level)], features, starts, 0, new)
        return {node: output[:, place : place + 1] for place, node in enumerate(level)}


@dataclass(frozen=True)
class GrowDynamicTree:
    """A tree that follows the draft's confidence (EAGLE-2, arXiv:2406.16858, section 4).

    A node's value is the product of the draft's probabilities on its path. At every depth the
    `top_k` most valuable new nodes are expanded by their `top_k` best tokens each; of all nodes
    the most valuable ones are kept, which always include the ancestors of those kept.
    """

    depth: int
    top_k: int

    def __call__(self, root: Root, num_draft_tokens: int, choose: Choose) -> Proposal:
        """See `Grow`."""
        rows, width = root.feature.shape[0], self.top_k
        device = root.feature.device
        values, tokens = self._best(root.logits(root.feature))  # each [rows, 1, top_k]
        values, tokens = values[:, 0], tokens[:, 0]
        # Candidates of all depths, in the order of their making; parents are places in that order.
        all_values, all_tokens = [values], [tokens]
        all_parents = [torch.zeros(rows, width, dtype=torch.long, device=device)]
        open_ = torch.arange(1, width + 1, device=device).expand(rows, -1)  # places that may expand
        features = root.feature.expand(-1, width, -1)
        mask = torch.zeros(rows, width, 0, dtype=torch.bool, device=device)
        own = torch.eye(width, dtype=torch.bool, device=device).expand(rows, -1, -1)
        for level in range(1, self.depth):
            mask = torch.cat([mask, own], dim=2)
            depths = torch.full((rows, width), level - 1, device=device)
            starts = [end + (level - 1) * width for end in root.ends]
            new = Branches(root.ends, depths, mask)
            output = root.forward(tokens, features, starts, 0, new)
            gains, best = self._best(root.logits(output))  # [rows, top_k, top_k]
            scores = (values[..., None] + gains).flatten(1)
            made = 1 + sum(part.shape[1] for part in all_values)
            all_values.append(scores)
            all_tokens.append(best.flatten(1))
            all_parents.append(open_.repeat_interleave(width, dim=1))
            values, picked = scores.topk(width, dim=1)
            parent = picked // width  # which of the expanded nodes
            tokens = best.flatten(1).gather(1, picked)
            open_ = made + picked
            features = _take(output, parent)
            mask = _take(mask, parent)
        return _most_valuable(all_values, all_tokens, all_parents, num_draft_tokens)

    def _best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids of the best tokens, [rows, n, top_k] each."""
        best = logits.float().log_softmax(dim=-1).topk(self.top_k, dim=-1)
        return best.values, best.indices


@dataclass(frozen=True)
class DraftShape:
    """What grows below the last token: a chain, the given tree, or a dynamic tree."""

    tree: Tree | None = None
    dynamic_tree: GrowDynamicTree | None = None

    @property
    def grow(self) -> Grow:
        """How it grows."""
        if self.dynamic_tree is not None:
            return self.dynamic_tree
        return grow_chain if self.tree is None else GrowTree(self.tree)


CHAIN = DraftShape()


def _take(items: Tensor, index: Tensor) -> Tensor:
    """[rows, n, width] at [rows, m] -> [rows, m, width]."""
    return items.gather(1, index[..., None].expand(-1, -1, items.shape[2]))


def _most_valuable(
    values: list[Tensor], tokens: list[Tensor], parents: list[Tensor], count: int
) -> Proposal:
    """The `count` most valuable candidates, parents before children.

    A child is never worth more than its parent and is made after it, so a stable order by value
    keeps every ancestor of what it keeps.
    """
    value = torch.cat(values, dim=1)
    order = value.sort(dim=1, descending=True, stable=True).indices[:, :count]
    kept = order.sort(dim=1).values  # in the order of their making
    place = torch.zeros(value.shape[0], value.shape[1] + 1, dtype=torch.long, device=value.device)
    numbers = torch.arange(1, kept.shape[1] + 1, device=value.device).expand_as(kept)
    place.scatter_(1, kept + 1, numbers)  # candidate's place of making -> its place in the proposal
    parent = torch.cat(parents, dim=1).gather(1, kept)
    return Proposal(torch.cat(tokens, dim=1).gather(1, kept), parents=place.gather(1, parent))
