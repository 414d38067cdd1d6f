"""Trees: the same shape from parents and from rank paths, and errors that say how to mend."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.errors import SpecError
from neuron_spec.trees import NO_PARENT, Tree

TREE = Tree.from_paths([[1, 0], [0], [1], [0, 0], [1, 0, 2], [0, 3]])


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    num_nodes = draw(st.integers(1, 9))
    parents = [NO_PARENT, *(draw(st.integers(0, node - 1)) for node in range(1, num_nodes))]
    return Tree(tuple(parents))


def test_nodes_are_numbered_by_length_and_ranks() -> None:
    assert TREE.paths == ((0,), (1,), (0, 0), (0, 3), (1, 0), (1, 0, 2))
    assert TREE.parents == (NO_PARENT, 0, 0, 1, 1, 2, 5)
    assert TREE.ranks == (0, 0, 1, 0, 3, 0, 2)


def test_its_tables() -> None:
    assert (TREE.num_nodes, TREE.num_draft_tokens) == (7, 6)
    assert (TREE.max_depth, TREE.max_children) == (3, 2)
    assert TREE.depths == (0, 1, 1, 2, 2, 2, 3)
    assert TREE.children == ((1, 2), (3, 4), (5,), (), (), (6,), ())
    assert TREE.sibling_numbers == (0, 0, 1, 0, 1, 0, 0)
    assert TREE.route(6) == (0, 2, 5, 6)
    assert TREE.leaf_routes == ((0, 1, 3), (0, 1, 4), (0, 2, 5, 6))
    seen = [[node for node, sees in enumerate(row) if sees] for row in TREE.attention_mask]
    assert seen == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 2, 5, 6]]


@pytest.mark.parametrize("k", [0, 1, 4])
def test_a_chain_is_one_branch(k: int) -> None:
    chain = Tree.chain(k)
    assert chain.num_draft_tokens == chain.max_depth == k
    assert chain.depths == tuple(range(k + 1))
    assert chain.max_children == min(k, 1)
    assert chain.leaf_routes == (tuple(range(k + 1)),)
    causal = tuple(tuple(j <= i for j in range(k + 1)) for i in range(k + 1))
    assert chain.attention_mask == causal
    assert k == 0 or chain == Tree.from_paths([[0] * depth for depth in range(1, k + 1)])


@given(trees())
def test_paths_and_parents_say_the_same(tree: Tree) -> None:
    """Up to the numbering: a tree made from its own paths has the same paths and routes."""
    if tree.num_draft_tokens:
        again = Tree.from_paths(tree.paths)
        assert set(again.paths) == set(tree.paths)
        assert sorted(again.depths) == sorted(tree.depths)
        assert Tree.from_paths(again.paths) == again


@given(trees())
def test_mask_routes_and_children_agree(tree: Tree) -> None:
    for node in range(tree.num_nodes):
        route = tree.route(node)
        assert len(route) == tree.depths[node] + 1
        assert [n for n, sees in enumerate(tree.attention_mask[node]) if sees] == sorted(route)
        for below in tree.children[node]:
            assert tree.parents[below] == node
    leaves = [route[-1] for route in tree.leaf_routes]
    assert leaves == [node for node in range(tree.num_nodes) if not tree.children[node]]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "at least one path"),
        ("0", "at least one path"),
        (None, "at least one path"),
        ({"a": 1}, "at least one path"),
        ([[]], "list of ranks"),
        ([0], "list of ranks"),
        (["0"], "list of ranks"),
        ([[0], [True]], "list of ranks"),
        ([[0], [-1]], "list of ranks"),
        ([[0], [0.0]], "list of ranks"),
        ([[0], [None]], "list of ranks"),
        ([[0], [1], [0]], "every path once"),
        ([[0], [1, 0]], r"prefix \[1\]"),
        ([[0], [0, 1, 2]], r"prefix \[0, 1\]"),
    ],
)
def test_paths_that_are_no_tree_are_refused_with_the_mend(paths: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        Tree.from_paths(paths)
    assert caught.value.mend


@pytest.mark.parametrize(
    ("parents", "ranks", "message"),
    [
        ((), (), "starts with its root"),
        ((0,), (), "starts with its root"),
        ((NO_PARENT, 1), (), "node 1"),
        ((NO_PARENT, 0, 2), (), "node 2"),
        ((NO_PARENT, NO_PARENT), (), "node 1"),
        ((NO_PARENT, 0), (0,), "1 ranks for 2 nodes"),
        ((NO_PARENT, 0, 0), (0, 1, 1), "node 2"),
        ((NO_PARENT, 0, 0), (0, 1, 0), "node 2"),
        ((NO_PARENT, 0), (0, -1), "node 1"),
    ],
)
def test_parents_that_are_no_tree_are_refused_with_the_mend(
    parents: tuple[int, ...], ranks: tuple[int, ...], message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        Tree(parents, ranks)
    assert caught.value.mend


def test_a_chain_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="num_draft_tokens"):
        Tree.chain(-1)


def test_trees_can_be_keys() -> None:
    assert len({Tree.chain(2), Tree((NO_PARENT, 0, 1)), Tree.chain(3)}) == 2
