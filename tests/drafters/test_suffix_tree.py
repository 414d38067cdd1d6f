"""The tree against a plain count of every string, and its upkeep."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.drafters.suffix_tree import AnswerStore, SuffixTree, _Node

SEQUENCE = st.lists(st.integers(0, 2), max_size=25)


def tree_of(*sequences: list[int], depth: int = 8) -> SuffixTree:
    tree = SuffixTree(depth)
    for sequence in sequences:
        tree.begin()
        tree.extend(sequence)
    return tree


def by_counting(
    sequences: list[list[int]], context: list[int], k: int, min_probability: float, depth: int
) -> list[int]:
    """The same by its definition: all places are looked at, nothing is kept."""
    best, best_score = [], 0.0
    for length in range(1, min(len(context), depth - 1) + 1):
        if not followers(sequences, context[-length:]):
            break
        tokens: list[int] = []
        probability, score = 1.0, 0.0
        while len(tokens) < min(k, length, depth - length):
            after = followers(sequences, context[-length:] + tokens)
            if not after:
                break
            counts = Counter(after)
            most = max(counts.values())
            token = next(token for token in reversed(after) if counts[token] == most)
            probability *= most / len(after)
            if probability < min_probability:
                break
            tokens.append(token)
            score += probability
        if score >= best_score:
            best, best_score = tokens, score
    return best


def followers(sequences: list[list[int]], string: list[int]) -> list[int]:
    """What followed a string, the earliest first."""
    return [
        sequence[start + len(string)]
        for sequence in sequences
        for start in range(len(sequence) - len(string))
        if sequence[start : start + len(string)] == string
    ]


@settings(max_examples=200, deadline=None)
@given(
    sequences=st.lists(SEQUENCE, max_size=4),
    context=SEQUENCE,
    k=st.integers(1, 6),
    min_probability=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    depth=st.integers(2, 7),
    max_answers=st.integers(0, 4),
)
def test_the_tree_agrees_with_counting(
    sequences: list[list[int]],
    context: list[int],
    k: int,
    min_probability: float,
    depth: int,
    max_answers: int,
) -> None:
    store = AnswerStore(depth, max_answers)
    for sequence in sequences:
        store.add(sequence)
    kept = sequences[len(sequences) - max_answers :] if max_answers < len(sequences) else sequences
    found = store.tree.continuation(context, k, min_probability)
    assert found.tokens == by_counting(kept, context, k, min_probability, depth)


@settings(max_examples=100, deadline=None)
@given(sequence=SEQUENCE, cut=st.integers(0, 25), depth=st.integers(2, 7))
def test_a_growing_sequence_is_looked_up_in_itself(
    sequence: list[int], cut: int, depth: int
) -> None:
    """In pieces, as committed tokens come."""
    tree = SuffixTree(depth)
    tree.extend(sequence[:cut])
    tree.extend(sequence[cut:])
    found = tree.continuation(sequence, 5, 0.1)
    assert found.tokens == by_counting([sequence], sequence, 5, 0.1, depth)


def test_the_most_frequent_follower_wins() -> None:
    found = tree_of([1, 2, 9, 1, 3, 9, 1, 2]).continuation([7, 1], 4, 0.1)
    assert (found.tokens, found.score) == ([2], 2 / 3)


def test_of_equally_frequent_followers_the_latest_wins() -> None:
    assert tree_of([1, 2, 9, 1, 3]).continuation([1], 4, 0.1).tokens == [3]
    assert tree_of([1, 2, 1, 3, 1, 3, 1, 2]).continuation([1], 4, 0.1).tokens == [2]


def test_a_proposal_is_no_longer_than_the_match() -> None:
    tree = tree_of([1, 2, 3, 4, 5, 6, 7])
    assert tree.continuation([1], 4, 0.1).tokens == [2]
    assert tree.continuation([0, 1, 2, 3], 4, 0.1).tokens == [4, 5, 6]
    assert tree.continuation([1, 2, 3], 2, 0.1).tokens == [4, 5], "nor than was asked for"


def test_match_and_proposal_fit_into_the_depth() -> None:
    """Of depth 4, three matched tokens leave room for one, two for two."""
    assert tree_of([1, 2, 3, 4, 5, 6, 7], depth=4).continuation([1, 2, 3], 4, 0.1).tokens == [4, 5]


def test_improbable_tokens_are_not_proposed() -> None:
    """After 1, 2: 3 in two of four; then 4 in one of two, so 1/4 for both."""
    tree = tree_of([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6], [1, 2, 7])
    assert tree.continuation([1, 2], 4, 0.25).tokens == [3, 5]
    assert tree.continuation([1, 2], 4, 0.26).tokens == [3]
    assert tree.continuation([1, 2], 4, 0.51).tokens == []


def nodes_of(tree: SuffixTree) -> list[_Node]:
    nodes = [tree._root]
    for node in nodes:  # grows meanwhile
        nodes += (node.children or {}).values()
    return nodes


def num_nodes(tree: SuffixTree) -> int:
    return len(nodes_of(tree))


def test_nothing_is_left_of_answers_that_were_dropped() -> None:
    generator = random.Random(0)
    store = AnswerStore(depth=8, max_answers=3)
    for _ in range(50):
        store.add([generator.randrange(5) for _ in range(40)])
    for _ in range(3):
        store.add([])
    assert num_nodes(store.tree) == 1


def test_dropped_answers_are_not_held_by_what_others_share_with_them() -> None:
    generator = random.Random(0)
    store = AnswerStore(depth=3, max_answers=2)
    answers = [[generator.randrange(4) for _ in range(30)] for _ in range(6)]
    for answer in answers:
        store.add(answer)
    held = [node.sequence for node in nodes_of(store.tree) if node.sequence is not None]
    assert held and all(sequence in answers[-2:] for sequence in held)


def test_text_that_never_repeats_takes_one_node_a_token() -> None:
    assert num_nodes(tree_of(list(range(100)), depth=24)) == 101


def test_no_answers_are_kept_if_none_shall_be() -> None:
    store = AnswerStore(depth=8, max_answers=0)
    store.add([1, 2, 3])
    assert num_nodes(store.tree) == 1


@pytest.mark.parametrize("period", [1, 3, 500])
def test_a_token_costs_the_same_in_a_long_history(period: int) -> None:
    """The worst text repeats itself: every suffix is open, up to the depth."""

    def seconds(length: int) -> float:
        tree = SuffixTree(24)
        tree.extend(number % period for number in range(length))
        started = time.process_time()
        for number in range(100):
            tree.extend([number % period])
            tree.continuation([number % period] * 24, 16, 0.1)
        return time.process_time() - started

    assert seconds(4000) < 0.05 + 4 * seconds(500)
