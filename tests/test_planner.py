"""Plans: expected tokens from counts, the best draft length by load, trees under a budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from neuron_spec.errors import UserError
from neuron_spec.metrics.costs import CostCurve, StepCost
from neuron_spec.metrics.estimates import Estimate
from neuron_spec.planner import best_tree, make_plan, tokens_by_draft_length
from neuron_spec.theory import expected_tokens, expected_tree_tokens
from neuron_spec.trees import Tree


def exact(value: float, spread: float = 0.0) -> Estimate:
    return Estimate(value, value * (1 - spread), value * (1 + spread), 20)


def curve(cost: Callable[[int, int], float], loads: Sequence[int], k: int = 4) -> CostCurve:
    return CostCurve(
        tuple(StepCost(c, n, exact(cost(c, n), 0.01)) for c in loads for n in range(k + 1))
    )


TOKENS = {k: exact(expected_tokens(0.7, k), 0.02) for k in range(5)}


def test_tokens_of_shorter_drafts_from_the_counts_of_a_longer_one() -> None:
    """Of 10 steps 4 accept nothing, 3 one token, 2 two, 1 four."""
    tokens = tokens_by_draft_length([[4, 3, 2, 0, 1]], 4)
    assert [tokens[k].value for k in range(5)] == pytest.approx([1, 1.6, 1.9, 2.0, 2.1])
    assert tokens[2].low is None  # one request
    two = tokens_by_draft_length([[4, 3, 2, 0, 1], [0, 0, 0, 0, 10], []], 4)
    assert two[4].value == pytest.approx((21 + 50) / 20)
    assert two[4].num_samples == 2
    assert two[0].value == 1
    assert tokens_by_draft_length([[]], 3) == {}


def test_where_a_step_costs_the_same_the_longest_draft_is_best() -> None:
    plan = make_plan(TOKENS, curve(lambda c, k: 0.01, [1]))
    (load,) = plan.loads
    assert load.best.num_draft_tokens == 4
    assert load.best.speed_up.value == pytest.approx(expected_tokens(0.7, 4))
    assert plan.by_load == ((1, 4),)
    assert plan.stops_paying_at is None
    assert plan.as_toml == "by_load = [[1, 4]]"


def test_speculation_stops_paying_as_the_load_grows() -> None:
    """A position costs more the more requests run: free at 1, as much as a plain step at 8."""
    plan = make_plan(TOKENS, curve(lambda c, k: 1 + k * (c - 1) / 7, [1, 2, 4, 8]))
    ks = [k for _, k in plan.by_load]
    assert ks[0] == 4
    assert ks == sorted(ks, reverse=True)
    assert ks[-1] == 0
    assert plan.stops_paying_at == plan.by_load[-1][0]
    assert 4 < plan.stops_paying_at <= 8
    assert [load.best.num_draft_tokens for load in plan.loads][-1] == 0
    assert plan.loads[-1].best.speed_up.value == 1
    # Exactly where a formula says: pays while some k has E(k) > 1 + k (c - 1) / 7.
    first_without = next(
        c for c in range(1, 9) if all(TOKENS[k].value * 0.99 <= 1 + k * (c - 1) / 7 for k in (1, 2))
    )
    assert plan.stops_paying_at == first_without


def test_it_stops_paying_where_it_stops_for_good() -> None:
    """An uneven machine: worth nothing at 2, much at 3, nothing from 4 on."""
    dear = {1: 0.0, 2: 9.0, 3: 0.0, 4: 9.0}
    plan = make_plan(TOKENS, curve(lambda c, k: 1 + k * dear[c], [1, 2, 3, 4]))
    assert plan.by_load == ((1, 4), (2, 0), (3, 4), (4, 0))
    assert plan.stops_paying_at == 4
    assert make_plan(TOKENS, curve(lambda c, k: 1 + k * dear[c], [1, 2, 3])).stops_paying_at is None


def test_bands_never_lose_more_than_the_tolerance() -> None:
    costs = curve(lambda c, k: 1 + 0.05 * k + 0.02 * k * c, [1, 3, 9, 16])
    plan = make_plan(TOKENS, costs)
    for c in range(1, 17):
        k = [k for first, k in plan.by_load if first <= c][-1]
        rates = {n: TOKENS[n].value / costs.step_s(c, n) for n in range(5)}
        assert rates[k] >= 0.99 * max(rates.values()) - 1e-12


def test_of_nearly_equal_drafts_the_shortest_is_taken() -> None:
    tokens = {0: exact(1.0), 1: exact(1.500), 2: exact(1.505), 3: exact(1.51), 4: exact(1.53)}
    assert make_plan(tokens, curve(lambda c, k: 1.0, [1])).by_load == ((1, 4),)
    del tokens[4]
    assert make_plan(tokens, curve(lambda c, k: 1.0, [1])).by_load == ((1, 1),)


def test_a_gain_smaller_than_the_tolerance_is_none() -> None:
    assert make_plan({1: exact(1.005)}, curve(lambda c, k: 1.0, [1])).stops_paying_at == 1


def test_the_speed_up_carries_the_uncertainty_of_all_three_parts() -> None:
    option = make_plan(TOKENS, curve(lambda c, k: 1.0, [1])).loads[0].options[2]
    assert option.speed_up.low is not None
    assert option.speed_up.high is not None
    half = (option.speed_up.high / option.speed_up.low) ** 0.5 - 1
    assert half == pytest.approx((0.02**2 + 2 * 0.01**2) ** 0.5, rel=0.02)
    unknown = {1: Estimate(1.5, None, None, 1)}
    assert make_plan(unknown, curve(lambda c, k: 1.0, [1])).loads[0].options[1].speed_up.low is None


def test_other_prompts_take_from_what_speculation_gains_and_loses() -> None:
    """A prompt takes half a step's time for each output token: one of them at 2, seven at 8."""
    costs = curve(lambda c, k: 1 + k * (c - 1) / 7, [1, 2, 8])
    alone = make_plan(TOKENS, costs)
    beside = make_plan(TOKENS, costs, prompt_s_per_token=0.5)
    assert beside.by_load == alone.by_load
    for waiting, without, with_prompts in zip(
        (0, 0.5, 3.5), alone.loads, beside.loads, strict=True
    ):
        for one, other in zip(without.options, with_prompts.options, strict=True):
            step_s = one.step_s.value / one.tokens_per_step.value
            expected = (1 + waiting) / (step_s + waiting)
            assert other.speed_up.value == pytest.approx(expected)
            assert other.break_even_length == one.break_even_length == one.step_s.value
            assert one.speed_up.low is not None and one.speed_up.high is not None
            assert other.speed_up.low is not None and other.speed_up.high is not None
            width = one.speed_up.high / one.speed_up.low
            assert other.speed_up.high / other.speed_up.low <= width + 1e-12


def test_only_known_draft_lengths_are_planned() -> None:
    """A tree is known whole or not at all."""
    plan = make_plan({4: exact(2.5)}, curve(lambda c, k: 1 + 0.1 * k, [1, 2]))
    assert [o.num_draft_tokens for o in plan.loads[0].options] == [0, 4]


def test_costs_between_measured_loads_are_on_the_line() -> None:
    costs = curve(lambda c, k: float(c), [2, 6])
    assert [costs.step_s(c, 1) for c in (1, 2, 3, 6, 9)] == [2, 2, 3, 6, 6]


def test_a_curve_without_the_plain_step_is_refused() -> None:
    with pytest.raises(UserError, match="not a cost curve"):
        CostCurve((StepCost(1, 1, exact(1.0)),))
    with pytest.raises(UserError, match="same draft lengths"):
        CostCurve(
            (StepCost(1, 0, exact(1.0)), StepCost(2, 0, exact(1.0)), StepCost(2, 1, exact(1.0)))
        )
    with pytest.raises(UserError):
        CostCurve(())


def test_costs_survive_json() -> None:
    costs = CostCurve(
        (StepCost(1, 0, exact(1.0), exact(0.1), exact(0.9)), StepCost(1, 1, exact(2.0)))
    )
    assert CostCurve.from_list(costs.as_list()) == costs


# Trees

RATES = [[0.5, 0.2, 0.1], [0.4, 0.15], [0.3]]


def all_trees(num_nodes: int) -> list[list[tuple[int, ...]]]:
    """Every set of paths closed under prefixes and older siblings."""
    paths = [(a,) for a in range(3)]
    paths += [(a, b) for a in range(3) for b in range(2)]
    paths += [(a, b, 0) for a in range(3) for b in range(2)]
    trees = []
    for chosen in combinations(paths, num_nodes):
        nodes = set(chosen)
        has_parents = all(p[:-1] in nodes for p in nodes if len(p) > 1)
        has_older = all((*p[:-1], p[-1] - 1) in nodes for p in nodes if p[-1])
        if has_parents and has_older:
            trees.append(list(chosen))
    return trees


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5, 7])
def test_no_tree_of_as_many_nodes_is_better(num_nodes: int) -> None:
    best = expected_tree_tokens(Tree.from_paths(best_tree(RATES, num_nodes)), RATES)
    others = [expected_tree_tokens(Tree.from_paths(t), RATES) for t in all_trees(num_nodes)]
    assert best == pytest.approx(max(others))


def test_trees_hold_their_budget_and_grow_inside_each_other() -> None:
    rng = random.Random(3)
    rates = [sorted((rng.random() / 4 for _ in range(4)), reverse=True) for _ in range(4)]
    last: set[tuple[int, ...]] = set()
    for num_nodes in range(1, 40):
        paths = best_tree(rates, num_nodes)
        assert len(paths) == num_nodes
        assert last <= set(paths)
        last = set(paths)
        assert Tree.from_paths(paths).paths == tuple(paths)


def test_nodes_without_a_chance_are_left_out() -> None:
    assert best_tree([[0.5, 0.0], [0.4]], 9) == [(0,), (0, 0)]
    assert best_tree([[0.0]], 9) == []
