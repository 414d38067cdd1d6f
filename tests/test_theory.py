"""The formulas against what the papers print and what was published for Neuron."""

from __future__ import annotations

import math
from itertools import product

import pytest

from neuron_spec.theory import (
    acceptance_rate,
    break_even_length,
    break_even_rate,
    conditional_rates,
    expected_tokens,
    expected_tokens_by_position,
    expected_tree_tokens,
    operations_factor,
    optimal_num_draft_tokens,
    pays,
    step_cost,
    tree_values,
    walltime_factor,
)
from neuron_spec.trees import Tree


@pytest.mark.parametrize(
    ("rate", "k", "operations", "speed"),
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_table_1_of_the_paper(rate: float, k: int, operations: float, speed: float) -> None:
    """arXiv:2211.17192, table 1: c = ĉ = 0."""
    assert walltime_factor(rate, k, 0.0) == pytest.approx(speed, abs=0.006)
    assert operations_factor(rate, k, 0.0) == pytest.approx(operations, abs=0.006)


@pytest.mark.parametrize(
    ("rate", "draft_cost", "expected"),
    [(0.75, 0.02, 3.2), (0.8, 0.04, 3.3), (0.82, 0.11, 2.5)],
)
def test_expected_improvements_of_the_paper(
    rate: float, draft_cost: float, expected: float
) -> None:
    """The same, appendix A.3: T5-XXL on English to German with T5 small, base and large, k = 7."""
    assert walltime_factor(rate, 7, draft_cost) == pytest.approx(expected, abs=0.06)


def test_published_acceptance_by_position_gives_the_published_length() -> None:
    """Llama-3.1-8B with EAGLE-3 on trn2 (vLLM Neuron tutorial): 86.5, 72.5, 63.5 % and 3.22."""
    reached = (0.865, 0.725, 0.635)
    rates = conditional_rates(reached)
    assert rates == pytest.approx([0.865, 0.725 / 0.865, 0.635 / 0.725])
    assert expected_tokens_by_position(rates) == pytest.approx(3.22, abs=0.006)
    # The same tutorial's rate: 74.1 % of the proposals.
    assert sum(reached) / 3 == pytest.approx(0.741, abs=0.001)


def test_a_mixture_of_experts_breaks_even_near_the_published_length() -> None:
    """gpt-oss-20b on trn2: 19.0, 37.5, 69.8 ms for 1, 4, 8 positions; published as "near 3.5"."""
    assert break_even_length(7, 0.0, 69.8 / 19.0) == pytest.approx(3.5, abs=0.2)
    assert break_even_length(3, 0.0, 37.5 / 19.0) == pytest.approx(1.97, abs=0.01)
    # A dense target's step hardly grows: 25.6 and 26.2 ms (the same README).
    assert break_even_length(3, 0.0, 26.2 / 25.6) < 1.03


def test_expected_tokens_at_the_ends() -> None:
    assert expected_tokens(0.0, 5) == 1
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.3, 0) == 1
    assert conditional_rates([]) == []
    assert conditional_rates([0.5, 0.0, 0.0]) == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(("rate", "k"), list(product((0.1, 0.5, 0.93), (1, 4, 9))))
def test_expected_tokens_is_the_closed_form_and_the_sum_over_outcomes(rate: float, k: int) -> None:
    value = expected_tokens(rate, k)
    assert value == pytest.approx((1 - rate ** (k + 1)) / (1 - rate))
    by_outcome = sum((n + 1) * rate**n * (1 - rate) for n in range(k)) + (k + 1) * rate**k
    assert value == pytest.approx(by_outcome)


def test_acceptance_is_the_common_part_of_both_distributions() -> None:
    assert acceptance_rate([0.5, 0.5, 0.0], [0.25, 0.25, 0.5]) == 0.5
    assert acceptance_rate([1.0, 0.0], [1.0, 0.0]) == 1
    with pytest.raises(ValueError, match="zip"):
        acceptance_rate([1.0], [0.5, 0.5])


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("cost", [0.0, 0.02, 0.29, 0.31, 0.8])
def test_some_draft_pays_exactly_if_it_is_accepted_more_often_than_it_costs(
    rate: float, cost: float
) -> None:
    """Corollary 3.9, and the paper's bound (1 + rate) / (1 + c) for the gain."""
    best = optimal_num_draft_tokens(rate, cost)
    assert (best > 0) == pays(rate, cost)
    if best:
        assert walltime_factor(rate, best, cost) >= (1 + rate) / (1 + cost) - 1e-12
    for other in range(32):
        assert walltime_factor(rate, other, cost) <= walltime_factor(rate, best, cost) + 1e-12


def test_verification_that_is_not_free_shortens_the_draft() -> None:
    free = optimal_num_draft_tokens(0.8, 0.05)
    dear = optimal_num_draft_tokens(0.8, 0.05, verification_costs=[1 + 0.3 * k for k in range(10)])
    assert 0 < dear < free
    assert optimal_num_draft_tokens(0.8, 0.05, verification_costs=[1, 2, 4, 6]) == 0
    assert optimal_num_draft_tokens(0.99, 0.0, largest=7) == 7
    assert optimal_num_draft_tokens(0.99, 0.0, verification_costs=[1, 1, 1]) == 2


@pytest.mark.parametrize("verification_cost", [1.0, 1.4])
def test_break_even_is_where_the_factor_is_one(verification_cost: float) -> None:
    rate = break_even_rate(3, 0.2, verification_cost)
    assert rate is not None
    assert walltime_factor(rate, 3, 0.2, verification_cost) == pytest.approx(1.0)
    assert step_cost(3, 0.2, verification_cost) == break_even_length(3, 0.2, verification_cost)
    assert break_even_rate(3, 1.0, 1.1) is None  # 4.1 for at most 4 tokens
    assert break_even_rate(3, 0.0) == pytest.approx(0.0, abs=1e-12)


def test_a_tree_adds_what_its_branches_catch() -> None:
    rates = [[0.5, 0.2], [0.4, 0.1]]
    tree = Tree.from_paths([[0], [1], [0, 0], [0, 1], [1, 0]])
    assert tree_values(tree, rates) == pytest.approx([1, 0.5, 0.2, 0.2, 0.05, 0.08])
    assert expected_tree_tokens(tree, rates) == pytest.approx(2.03)
    chain = Tree.chain(2)
    assert expected_tree_tokens(chain, rates) == expected_tokens_by_position([0.5, 0.4])
    deeper = Tree.from_paths([[0], [0, 0], [0, 0, 0], [2]])
    assert expected_tree_tokens(deeper, rates) == pytest.approx(1.7)  # unknown places count as 0
    assert not math.isnan(expected_tree_tokens(Tree.chain(0), []))
