"""The shape of a drafted tree: parents, depths, attention mask, paths; a chain is one branch.

Node 0 is the root: the last committed token, which nobody drafted. Nodes 1 … n-1 are the drafted
tokens, so that node i stands in column i-1 of every tensor of drafted tokens. No torch in here: the
tables are tuples, made once and shared by all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neuron_spec.errors import SpecError, shown

ROOT = 0
NO_PARENT = -1
Path = tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """A static tree of nodes in an order that puts every parent before its children.

    Attributes:
        parents: [nodes] the parent of each node; `NO_PARENT` for the root.
        ranks: [nodes] which of its parent's proposals a node is (0 = the likeliest); siblings stand
            in rising rank. Left out, siblings are numbered 0, 1, … The root's rank is 0.

    Raises:
        SpecError: the two do not describe a tree.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_parents(self.parents)
        if not self.ranks:
            object.__setattr__(self, "ranks", _sibling_numbers(self.parents))
        _check_ranks(self.parents, self.ranks)

    @classmethod
    def chain(cls, num_draft_tokens: int) -> Tree:
        """The tree of one branch of k drafted tokens; k = 0 is the root alone."""
        if num_draft_tokens < 0:
            raise ValueError(f"num_draft_tokens: expected 0 or more, found {num_draft_tokens}")
        return cls((NO_PARENT, *range(num_draft_tokens)))

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> Tree:
        """A tree written as Medusa and NxDI write theirs: the rank path of every node.

        Path [2, 0] is the best token of the second head after the third best of the first. Every
        prefix of a path has to be listed; nodes are numbered in the order (length, ranks), whatever
        the order in the list (FasterDecoding/Medusa `medusa/model/utils.py`).

        Raises:
            SpecError: not a list of rank paths, a path twice, or a prefix missing.
        """
        nodes = [(), *_checked_paths(paths)]
        numbers = {path: number for number, path in enumerate(nodes)}
        _check_prefixes(numbers)
        parents = [NO_PARENT, *(numbers[path[:-1]] for path in nodes[1:])]
        return cls(tuple(parents), (0, *(path[-1] for path in nodes[1:])))

    @classmethod
    def from_children(cls, children: Mapping[str, Sequence[str | int]]) -> Tree:
        """A tree written as NxDI's `token_tree_config`: {"0": ["1", "2"], "1": ["3"]}, node ids in
        breadth-first order from the root 0; leaves may be left out (`modules/eagle/token_tree.py`).

        Raises:
            SpecError: not such a table, or the nodes are not numbered breadth-first.
        """
        parents: dict[int, int] = {}
        try:
            for parent, below in children.items():
                for child in below:
                    if int(child) in parents or int(child) == ROOT:
                        raise _bad_children(child, "one parent for every node, none for 0")
                    parents[int(child)] = int(parent)
        except (TypeError, ValueError):
            raise _bad_children(children, 'node ids, as {"0": ["1", "2"]}') from None
        if sorted(parents) != list(range(1, len(parents) + 1)):
            raise _bad_children(sorted(parents), "ids 1, 2, … without a gap")
        return cls((NO_PARENT, *(parents[node] for node in sorted(parents))))

    @property
    def num_nodes(self) -> int:
        """Drafted tokens and the root: positions that the target scores in a step."""
        return len(self.parents)

    @property
    def is_chain(self) -> bool:
        """Whether no node has siblings."""
        return self.max_depth == self.num_draft_tokens

    @property
    def num_draft_tokens(self) -> int:
        """Drafted tokens, on all branches together."""
        return len(self.parents) - 1

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """[nodes] drafted tokens from the root to each node: its position after the root's."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def max_depth(self) -> int:
        """Most tokens that one step can accept."""
        return max(self.depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """[nodes] the children of each node, in rising rank: the order in which they are tried."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return tuple(map(tuple, children))

    @property
    def max_children(self) -> int:
        """Most proposals that one node has."""
        return max(map(len, self.children))

    @cached_property
    def sibling_numbers(self) -> tuple[int, ...]:
        """[nodes] how many older siblings each node has; 0 for the root."""
        return _sibling_numbers(self.parents)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Rank path of every drafted node, in node order: what `from_paths` takes."""
        paths: list[Path] = [()]
        for parent, rank in zip(self.parents[1:], self.ranks[1:], strict=True):
            paths.append((*paths[parent], rank))
        return tuple(paths[1:])

    def first(self, num_draft_tokens: int) -> Tree:
        """The tree of its first nodes, at most so many beside the root."""
        end = min(num_draft_tokens, self.num_draft_tokens) + 1
        return Tree(self.parents[:end], self.ranks[:end])

    @cached_property
    def inner_levels(self) -> tuple[Path, ...]:
        """The nodes that have children, depth by depth: what a drafter runs, pass by pass."""
        inner = [node for node, below in enumerate(self.children) if below]
        depths = sorted({self.depths[node] for node in inner})
        return tuple(tuple(n for n in inner if self.depths[n] == depth) for depth in depths)

    def route(self, node: int) -> Path:
        """The nodes from the root to `node`, both included."""
        route = [node]
        while route[-1] != ROOT:
            route.append(self.parents[route[-1]])
        return tuple(reversed(route))

    @cached_property
    def leaf_routes(self) -> tuple[Path, ...]:
        """The route to every leaf, in node order of the leaves (Medusa's `retrieve_indices`)."""
        return tuple(self.route(node) for node, below in enumerate(self.children) if not below)

    @cached_property
    def attention_mask(self) -> tuple[tuple[bool, ...], ...]:
        """[nodes, nodes] whether node i sees node j: j is i itself or one of its ancestors."""
        routes = [frozenset(self.route(node)) for node in range(self.num_nodes)]
        return tuple(tuple(seen in route for seen in range(self.num_nodes)) for route in routes)


def _check_parents(parents: tuple[int, ...]) -> None:
    if not parents or parents[0] != NO_PARENT:
        raise SpecError(
            "a tree starts with its root",
            where="tree.parents",
            found=shown(parents[:1]),
            expected=f"{NO_PARENT} in the first place",
            mend=f"put {NO_PARENT} first, for the last committed token",
        )
    for node, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < node:
            raise SpecError(
                f"node {node} does not come after its parent",
                where="tree.parents",
                found=parent,
                expected=f"0 … {node - 1}",
                mend="number the nodes so that every parent stands before its children",
            )


def _check_ranks(parents: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    if len(ranks) != len(parents):
        raise SpecError(
            "one rank a node",
            where="tree.ranks",
            found=f"{len(ranks)} ranks for {len(parents)} nodes",
            mend="give as many ranks as parents, 0 for the root",
        )
    highest: dict[int, int] = {}
    for node, (parent, rank) in enumerate(zip(parents, ranks, strict=True)):
        if rank <= highest.get(parent, -1):
            raise SpecError(
                f"node {node} does not rank behind its older siblings",
                where="tree.ranks",
                found=rank,
                expected=f"at least {highest.get(parent, -1) + 1}",
                mend="order siblings by rank, each rank once",
            )
        highest[parent] = rank


def _checked_paths(paths: Sequence[Sequence[int]]) -> list[Path]:
    """The paths as tuples, sorted by (length, ranks)."""
    if isinstance(paths, str) or not isinstance(paths, Sequence) or not paths:
        raise _bad_paths(paths, "a list of at least one path", "list the rank path of every node")
    for path in paths:
        if not _is_path(path):
            raise _bad_paths(
                path, "a list of ranks", "write each path as [0], [0, 1], …: ranks from 0, no null"
            )
    tuples = [tuple(path) for path in paths]
    twice = sorted({path for path in tuples if tuples.count(path) > 1})
    if twice:
        raise _bad_paths(list(twice[0]), "every path once", "take the second one out")
    return sorted(tuples, key=lambda path: (len(path), path))


def _is_path(path: Any) -> bool:
    return (
        isinstance(path, Sequence)
        and len(path) > 0
        and all(type(rank) is int and rank >= 0 for rank in path)
    )


def _check_prefixes(known: dict[Path, int]) -> None:
    for path in known:
        if path and path[:-1] not in known:
            raise _bad_paths(
                list(path),
                f"its prefix {list(path[:-1])} in the list too",
                f"add {list(path[:-1])}, or take out the paths that start with it",
            )


def _bad_children(found: object, expected: str) -> SpecError:
    return SpecError(
        "not a table of children",
        where="tree",
        found=shown(found),
        expected=expected,
        mend="write NxDI's token_tree_config, or a list of rank paths",
    )


def _bad_paths(found: object, expected: str, mend: str) -> SpecError:
    return SpecError(
        "not a tree of rank paths", where="tree", found=shown(found), expected=expected, mend=mend
    )


def _sibling_numbers(parents: tuple[int, ...]) -> tuple[int, ...]:
    seen: dict[int, int] = {}
    numbers = []
    for parent in parents:
        numbers.append(seen.get(parent, 0))
        seen[parent] = numbers[-1] + 1
    return tuple(numbers)
