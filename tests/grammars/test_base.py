"""Masks along drafted trees and paths, against the grammar asked token by token."""

from __future__ import annotations

import torch
from automata import END, Automaton, wandering
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.grammars import allowed_after, node_masks
from neuron_spec.trees import NO_PARENT, Tree

VOCAB = 6
# 0 -> 1 -> end; after token 5 no token can come.
GRAMMAR = Automaton({0: {1: 1, 5: 2}, 1: {2: 1, 3: END}, 2: {}}, VOCAB)


def rows(masks: torch.Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in masks]


EVERYTHING = list(range(VOCAB))


def test_a_chain() -> None:
    masks = node_masks(GRAMMAR.begin(), Tree.chain(3), [1, 2, 4], VOCAB)
    assert rows(masks.allowed) == [[1, 5], [2, 3], [2, 3], EVERYTHING]
    assert masks.dead_ends == frozenset()


def test_nothing_is_asked_after_the_end_and_of_what_was_not_proposed() -> None:
    assert rows(node_masks(GRAMMAR.begin(), Tree.chain(3), [1, 3, 0], VOCAB).allowed) == [
        [1, 5],
        [2, 3],
        EVERYTHING,
        EVERYTHING,
    ]
    assert (
        rows(node_masks(GRAMMAR.begin(), Tree.chain(2), [-1, -1], VOCAB).allowed)[1:]
        == [EVERYTHING] * 2
    )


def test_dead_ends_are_told() -> None:
    masks = node_masks(GRAMMAR.begin(), Tree.chain(2), [5, 1], VOCAB)
    assert masks.dead_ends == {1}
    assert rows(masks.allowed)[1:] == [EVERYTHING] * 2


def test_a_path_leaves_the_matcher_where_it_was() -> None:
    matcher = GRAMMAR.begin()
    assert rows(torch.stack([allowed_after(matcher, path) for path in ([], [1], [1, 2])])) == [  # type: ignore[misc]
        [1, 5],
        [2, 3],
        [2, 3],
    ]
    for path in ([2], [1, 1], [1, 3], [1, 3, 1], [-1]):
        assert allowed_after(matcher, path) is None
    assert matcher.states == [0]


@settings(deadline=None)
@given(data=st.data(), seed=st.integers(0, 50), share=st.sampled_from([0.1, 0.5, 0.9]))
def test_every_node_of_a_tree_has_the_mask_of_its_path(
    data: st.DataObject, seed: int, share: float
) -> None:
    count = data.draw(st.integers(0, 9))
    parents = [data.draw(st.integers(0, node)) for node in range(count)]
    tokens = data.draw(st.lists(st.integers(-1, VOCAB - 1), min_size=count, max_size=count))
    tree = Tree((NO_PARENT, *parents))
    grammar = wandering(VOCAB, share=share, seed=seed)
    matcher = grammar.begin()
    masks = node_masks(matcher, tree, tokens, VOCAB)
    assert matcher.states == [0]
    for node in range(tree.num_nodes):
        path = [tokens[above - 1] for above in tree.route(node)[1:]]
        expected = grammar.after(tuple(path)) if grammar.accepts(path) else EVERYTHING
        assert rows(masks.allowed)[node] == expected
