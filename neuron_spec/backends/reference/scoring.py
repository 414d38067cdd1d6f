"""What the target makes of a step's tokens: in passes as wide as the step, or pinned ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Protocol

import torch
from torch import Tensor

from neuron_spec.backends.decisions import tree_of
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.pinned import PinnedShape, PinnedWindow
from neuron_spec.drafters import Branches
from neuron_spec.trees import Tree


class Scores:
    """What the target makes of one step's tokens, [rows, n, …] each; see `Scored`."""

    def __init__(self, target: Target, hidden: Tensor, features: Tensor) -> None:
        """Of hidden states and features of at least so many rows and tokens as `features` has."""
        self._target, self._hidden, self.features = target, hidden, features

    @cached_property
    def logits(self) -> Tensor:
        """[rows, n, vocab]"""
        return self._told(self._target.logits(self._hidden))

    @cached_property
    def best(self) -> Tensor:
        """[rows, n] ids"""
        return self._told(self._target.best(self._hidden))

    def _told(self, values: Tensor) -> Tensor:
        """Of the pass's rows and tokens those that the step has."""
        rows, count = self.features.shape[:2]
        return values if values.shape[:2] == (rows, count) else values[:rows, :count]


class Score(Protocol):
    """How tokens are scored."""

    @property
    def target(self) -> Target:
        """By whom."""

    def __call__(
        self,
        tokens: Tensor,
        starts: Mapping[int, int],
        parents: Tensor | None,
        *,
        idle: Mapping[int, int],
    ) -> Scores:
        """Score ids [rows, n] of a chain or tree, the root first.

        Args:
            starts: slot -> position of the root, of rows that run.
            parents: [rows, n - 1], see `Proposal`; None for chains.
            idle: slot -> where a row that does not run may be written.
        """


class WideScore:
    """Passes as wide as the step; rows that do not run go along where they may be written."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __call__(
        self,
        tokens: Tensor,
        starts: Mapping[int, int],
        parents: Tensor | None,
        *,
        idle: Mapping[int, int],
    ) -> Scores:
        """See `Score`."""
        places = {**idle, **starts}
        positions = [places[slot] for slot in range(tokens.shape[0])]
        branches = None if parents is None else branches_of(positions, parents)
        hidden, features = self.target.hidden(tokens, positions, 0, branches)
        return Scores(self.target, hidden, features)


class PinnedScore:
    """Passes of one shape, see `pinned`."""

    def __init__(self, target: Target, shape: PinnedShape) -> None:
        self.target, self.shape = target, shape

    def __call__(
        self,
        tokens: Tensor,
        starts: Mapping[int, int],
        parents: Tensor | None,
        *,
        idle: Mapping[int, int],
    ) -> Scores:
        """See `Score`; of rows that do not run nothing is written, and their scores mean
        nothing."""
        rows, count = tokens.shape
        branches = None
        if parents is not None:
            branches = branches_of([starts.get(slot, 0) for slot in range(rows)], parents)
        window = PinnedWindow(self.shape, starts, count, branches=branches, device=tokens.device)
        hidden, features = self.target.hidden_through(self.shape.padded(tokens), window)
        return Scores(self.target, hidden, features[:rows, :count])


def branches_of(positions: Sequence[int], parents: Tensor) -> Branches:
    """How the nodes of every row's tree, root included, stand in the cache."""
    trees = [tree_of(tuple(row)) for row in parents.tolist()]
    tables = [_tables(tree) for tree in trees]
    depths = torch.stack([depths for depths, _ in tables]).to(parents.device)
    mask = torch.stack([mask for _, mask in tables]).to(parents.device)
    return Branches(positions, depths, mask)


@lru_cache(maxsize=4096)
def _tables(tree: Tree) -> tuple[Tensor, Tensor]:
    """Depths [nodes] and attention mask [nodes, nodes] of a tree."""
    return torch.tensor(tree.depths), torch.tensor(tree.attention_mask)
