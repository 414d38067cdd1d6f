"""What speculation can gain, as formulas: pure functions of rates and costs, nothing measured here.

Leviathan et al. 2023 (arXiv:2211.17192) where nothing else is said. Costs are in units of one plain
step of the target (one position, no draft), so that a plain step costs 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from neuron_spec.trees import Tree


def acceptance_rate(draft_probs: Sequence[float], target_probs: Sequence[float]) -> float:
    """Chance that rejection sampling accepts a drawn token: the common part of both distributions.

    Corollary 3.6: 1 - D_LK, and D_LK is the total variation distance.
    """
    return sum(min(pair) for pair in zip(draft_probs, target_probs, strict=True))


def expected_tokens(rate: float, num_draft_tokens: int) -> float:
    """Tokens of a step with the same acceptance rate at every position, equation (1).

    (1 - rate^(k+1)) / (1 - rate), the target's own token included: 1 … k + 1.
    """
    return expected_tokens_by_position([rate] * num_draft_tokens)


def expected_tokens_by_position(rates: Sequence[float]) -> float:
    """1 + Σ Π: tokens of a step from the acceptance at each position given all before it."""
    reached: float = sum(accumulate(rates, lambda before, rate: before * rate))
    return 1 + reached


def conditional_rates(reached: Sequence[float]) -> list[float]:
    """Acceptance at each position given all before it, from the share of all steps that reach it.

    Engines publish the latter ("per-position acceptance"): its sum plus 1 is the length.
    """
    before = [1.0, *reached]
    return [now / last if last else 0.0 for now, last in zip(reached, before, strict=False)]


def expected_tree_tokens(tree: Tree, rank_rates: Sequence[Sequence[float]]) -> float:
    """Tokens of a step with a drafted tree; see `tree_values`."""
    return 1 + sum(tree_values(tree, rank_rates)[1:])


def tree_values(tree: Tree, rank_rates: Sequence[Sequence[float]]) -> list[float]:
    """[nodes] chance of every node to be accepted; 1 for the root.

    Acceptance depends on depth and rank alone, the assumption of Sequoia (arXiv:2402.12374,
    section 3.1) and of Medusa's tree construction (arXiv:2401.10774, section 2.3.3).

    Args:
        rank_rates: [depth][rank] chance that of an accepted node's children the one of this rank is
            accepted; what is missing counts as 0.
    """
    values = [1.0]
    for node in range(1, tree.num_nodes):
        rate = rank_rate(rank_rates, tree.depths[node] - 1, tree.ranks[node])
        values.append(values[tree.parents[node]] * rate)
    return values


def rank_rate(rank_rates: Sequence[Sequence[float]], depth: int, rank: int) -> float:
    """[depth][rank] of a table that may end early."""
    if depth >= len(rank_rates) or rank >= len(rank_rates[depth]):
        return 0.0
    return rank_rates[depth][rank]


def step_cost(num_draft_tokens: int, draft_cost: float, verification_cost: float = 1.0) -> float:
    """Cost of a step: k draft passes and one target pass over k + 1 positions.

    Args:
        draft_cost: of one draft pass (the paper's c).
        verification_cost: of the target over k + 1 positions; 1 where it is memory bound, as the
            paper assumes.
    """
    return num_draft_tokens * draft_cost + verification_cost


def walltime_factor(
    rate: float, num_draft_tokens: int, draft_cost: float, verification_cost: float = 1.0
) -> float:
    """How many times faster, theorem 3.8: (1 - rate^(k+1)) / ((1 - rate)(k c + 1))."""
    cost = step_cost(num_draft_tokens, draft_cost, verification_cost)
    return expected_tokens(rate, num_draft_tokens) / cost


def operations_factor(rate: float, num_draft_tokens: int, draft_operations: float) -> float:
    """How many times more arithmetic, theorem 3.11.

    (1 - rate)(k ĉ + k + 1) / (1 - rate^(k+1)), ĉ being the draft's operations a token in units of
    the target's.
    """
    operations = num_draft_tokens * draft_operations + num_draft_tokens + 1
    return operations / expected_tokens(rate, num_draft_tokens)


def optimal_num_draft_tokens(
    rate: float,
    draft_cost: float,
    *,
    verification_costs: Sequence[float] | None = None,
    largest: int = 31,
) -> int:
    """The k of the largest walltime factor, section 3.5; 0 where no draft pays.

    Args:
        verification_costs: [largest + 1] of the target over 1, 2, … positions; all 1 by default.
        largest: the k to try, at most; no more than there are costs for.
    """
    costs = verification_costs or [1.0] * (largest + 1)
    candidates = range(min(largest, len(costs) - 1) + 1)
    return max(candidates, key=lambda k: (walltime_factor(rate, k, draft_cost, costs[k]), -k))


def pays(rate: float, draft_cost: float) -> bool:
    """Whether some k is faster where verification is free: iff rate > c (corollary 3.9)."""
    return rate > draft_cost


def break_even_length(
    num_draft_tokens: int, draft_cost: float, verification_cost: float = 1.0
) -> float:
    """The acceptance length below which a step costs more than the tokens it gives.

    It is the step's cost itself. Where the target reads more weights the more positions it scores
    (mixtures of experts) verification is not free, and this is far above 1 also without a draft.
    """
    return step_cost(num_draft_tokens, draft_cost, verification_cost)


def break_even_rate(
    num_draft_tokens: int, draft_cost: float, verification_cost: float = 1.0
) -> float | None:
    """The acceptance rate of that length; None if not even a perfect draft pays."""
    wanted = break_even_length(num_draft_tokens, draft_cost, verification_cost)
    if wanted > num_draft_tokens + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):  # a double has 53 bits
        middle = (low + high) / 2
        is_enough = expected_tokens(middle, num_draft_tokens) >= wanted
        low, high = (low, middle) if is_enough else (middle, high)
    return high
