"""Prompt lookup: the longest suffix, its latest earlier occurrence, what followed it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.drafters import NO_PROPOSAL, NgramDrafter
from neuron_spec.drafters.ngram import NgramIndex

TOKENS = st.lists(st.integers(0, 3), min_size=2, max_size=30)


def propose(history: list[int], k: int = 3, sizes: tuple[int, int] = (1, 3)) -> list[int]:
    drafter = NgramDrafter(min_size=sizes[0], max_size=sizes[1])
    drafter.begin(0, torch.tensor(history), torch.zeros(len(history) - 1, 8))
    return list(drafter.propose(1, k).tokens[0].tolist())


def test_the_longest_suffix_wins_over_a_later_shorter_one() -> None:
    assert propose([1, 2, 3, 9, 7, 3, 8, 1, 2, 3]) == [9, 7, 3]


def test_of_equal_suffixes_the_latest_wins() -> None:
    assert propose([5, 1, 5, 2, 5]) == [2, 5]


def test_without_an_earlier_occurrence_nothing_is_proposed() -> None:
    assert propose([1, 2, 3]) == []
    assert propose([1, 2, 1], sizes=(2, 3)) == []


def test_a_suffix_may_overlap_its_earlier_occurrence() -> None:
    assert propose([7, 7, 7, 7]) == [7]


def test_rows_with_fewer_proposals_are_filled() -> None:
    drafter = NgramDrafter(min_size=1, max_size=3)
    drafter.begin(0, torch.tensor([1, 2, 3]), torch.zeros(2, 8))
    drafter.begin(2, torch.tensor([4, 5, 6, 4]), torch.zeros(3, 8))
    empty = [NO_PROPOSAL] * 2
    assert drafter.propose(3, 2).tokens.tolist() == [empty, empty, [5, 6]]
    drafter.observe(0, torch.tensor([1]), torch.zeros(1, 8))
    drafter.release(2)
    assert drafter.propose(3, 2).tokens.tolist() == [[2, 3], empty, empty]


@given(history=TOKENS, cut=st.integers(0, 30), shortest=st.integers(1, 3), more=st.integers(0, 3))
def test_lookup_agrees_with_the_definition(
    history: list[int], cut: int, shortest: int, more: int
) -> None:
    """Whatever the pieces are in which the history came."""
    index = NgramIndex(shortest, shortest + more)
    index.extend(history[:cut])
    index.extend(history[cut:])
    assert index.continuation(5) == by_scanning(history, shortest, shortest + more, 5)


def by_scanning(history: list[int], shortest: int, longest: int, k: int) -> list[int]:
    for size in range(longest, shortest - 1, -1):
        starts = range(len(history) - size)
        ends = [i + size for i in starts if history[i : i + size] == history[-size:]]
        if ends:
            return history[max(ends) : max(ends) + k]
    return []


def test_a_suffix_as_long_as_the_history_is_no_match() -> None:
    assert propose([1, 1], sizes=(2, 5)) == []
