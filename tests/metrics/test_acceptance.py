"""Acceptance by its definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.metrics import AcceptanceCounts

Steps = list[tuple[int, int]]
STEPS = st.lists(
    st.integers(0, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), max_size=12
)


def counts_of(steps: Steps) -> AcceptanceCounts:
    counts = AcceptanceCounts()
    for num_drafted, num_accepted in steps:
        counts.add_step(num_drafted, num_accepted)
    return counts


def test_the_definitions() -> None:
    counts = counts_of([(3, 3), (3, 1), (3, 0), (0, 0)])
    assert counts.rate == 4 / 9
    assert counts.length == (4 + 2 + 1 + 1) / 4
    assert counts.rate_by_position == [2 / 3, 1 / 3, 1 / 3]
    assert counts.as_dict() == {
        "num_steps": 4,
        "num_drafted_tokens": 9,
        "num_accepted_tokens": 4,
        "acceptance_rate": 4 / 9,
        "acceptance_length": 2.0,
        "acceptance_rate_by_position": [2 / 3, 1 / 3, 1 / 3],
        "steps_by_num_accepted": [2, 1, 0, 1],
        "drafted_by_position": [3, 3, 3],
    }
    assert AcceptanceCounts.from_dict(counts.as_dict()) == counts


def test_a_tree_counts_depths_and_not_nodes() -> None:
    counts = AcceptanceCounts()
    counts.add_step(8, 2, num_positions=3)
    counts.add_step(8, 0, num_positions=3)
    assert (counts.rate, counts.length) == (2 / 16, 2.0)
    assert counts.rate_by_position == [1 / 2, 1 / 2, 0]
    assert counts.steps_by_accepted == [1, 0, 1]


def test_nothing_counted_is_none_and_not_zero() -> None:
    counts = AcceptanceCounts()
    assert counts.rate is None and counts.length is None and counts.rate_by_position == []


def test_plain_decoding_has_length_one_and_no_rate() -> None:
    counts = counts_of([(0, 0), (0, 0)])
    assert counts.rate is None and counts.length == 1.0


def test_a_position_counts_only_where_it_was_proposed() -> None:
    assert counts_of([(1, 1), (3, 1)]).rate_by_position == [1.0, 0.0, 0.0]


@given(STEPS)
def test_they_agree_with_the_plain_sums(steps: Steps) -> None:
    counts = counts_of(steps)
    drafted, accepted = sum(k for k, _ in steps), sum(n for _, n in steps)
    assert (counts.num_steps, counts.num_drafted) == (len(steps), drafted)
    assert counts.rate == (accepted / drafted if drafted else None)
    committed = sum(n + 1 for _, n in steps)
    assert counts.length == (pytest.approx(committed / len(steps)) if steps else None)
    longest = max((k for k, _ in steps), default=0)
    expected = [sum(n > i for _, n in steps) / sum(k > i for k, _ in steps) for i in range(longest)]
    assert counts.rate_by_position == expected


@given(STEPS, STEPS)
def test_adding_is_counting_everything_together(first: Steps, second: Steps) -> None:
    total, other = counts_of(first), counts_of(second)
    total.add(other)
    assert total == counts_of(first + second)
    assert other == counts_of(second), "the added counts stay as they were"


def test_counts_share_no_state() -> None:
    first = AcceptanceCounts()
    first.add_step(2, 1)
    assert AcceptanceCounts().accepted_by_position == []
