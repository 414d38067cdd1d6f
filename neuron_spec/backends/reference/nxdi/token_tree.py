"""The index tables that NxDI derives from a token tree (`modules/eagle/token_tree.py`).

Paths that are shorter than the longest are filled up with the smallest nodes that they do not
hold. These fillers take part in the acceptance test as if they stood on the path, so that trees
with leaves of unequal depth can emit tokens that the target did not choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuron_spec.trees import ROOT, Tree

Table = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TokenTree:
    """A static tree, as NxDI computes with it.

    Raises:
        ValueError: a node skips one of its parent's best tokens, which NxDI cannot express.
    """

    tree: Tree

    def __post_init__(self) -> None:
        if self.tree.ranks != self.tree.sibling_numbers:
            raise ValueError("NxDI's token trees take the best tokens of a node without a gap")

    @property
    def depth(self) -> int:
        """Levels, the root's included."""
        return self.tree.max_depth + 1

    @cached_property
    def levels(self) -> Table:
        """Nodes by depth."""
        depths = self.tree.depths
        nodes = range(self.tree.num_nodes)
        return tuple(tuple(n for n in nodes if depths[n] == d) for d in range(self.depth))

    @cached_property
    def num_children(self) -> Table:
        """Children of every node, level by level."""
        return tuple(tuple(len(self.tree.children[n]) for n in level) for level in self.levels)

    @cached_property
    def routes(self) -> Table:
        """From the root to every leaf, depth first."""
        routes: list[tuple[int, ...]] = []

        def visit(node: int) -> None:
            if not self.tree.children[node]:
                routes.append(self.tree.route(node))
            for child in self.tree.children[node]:
                visit(child)

        visit(ROOT)
        return tuple(routes)

    @cached_property
    def permutations(self) -> Table:
        """Per route: its nodes first, then all others by number."""
        nodes = range(self.tree.num_nodes)
        return tuple((*r, *(node for node in nodes if node not in r)) for r in self.routes)

    @cached_property
    def paths(self) -> Table:
        """Routes of equal length: the short ones are filled up, see above."""
        return tuple(order[: self.depth] for order in self.permutations)

    @cached_property
    def cache_places(self) -> Table:
        """Per route: at which distance from the root's position every node's entry is stored.

        The missing end of a short route counts as the last node, which thereby loses its place.
        """
        return tuple(self._cache_places(route) for route in self.routes)

    @cached_property
    def topk_picks(self) -> Table:
        """Per level: which of the top k of all its nodes, side by side, become the next level.

        Rows of nodes without children are not skipped: a node right of such a one gets the tokens
        of its neighbour.
        """
        return tuple(_topk_picks(counts) for counts in self.num_children[:-1])

    @cached_property
    def feature_picks(self) -> Table:
        """Per level: which node of it each node of the next one hangs below."""
        return tuple(
            tuple(place for place, count in enumerate(counts) for _ in range(count))
            for counts in self.num_children[:-1]
        )

    @cached_property
    def ancestors(self) -> Tensor:
        """[nodes, nodes] bool: a node sees its ancestors and itself."""
        return torch.tensor(self.tree.attention_mask)

    def _cache_places(self, route: tuple[int, ...]) -> tuple[int, ...]:
        num_nodes = self.tree.num_nodes
        filled = (*route, *[num_nodes - 1] * (self.depth - len(route)))
        places = {node: distance for distance, node in enumerate(filled)}
        others = [node for node in range(num_nodes) if node not in places]
        places |= {node: self.depth + number for number, node in enumerate(others)}
        return tuple(places[node] for node in range(num_nodes))


def _topk_picks(counts: tuple[int, ...]) -> tuple[int, ...]:
    width, first = max(counts), 0
    picks: list[int] = []
    for count in counts:
        picks += range(first, first + count)
        first += width if count else 0
    return tuple(picks)
