"""Typical acceptance against thresholds computed by hand."""

from __future__ import annotations

import math

import pytest
import rule_laws as laws
import torch
from hypothesis import given, settings
from rule_cases import TREES, Case, batches

from neuron_spec.rules import Uniforms, typical
from neuron_spec.trees import Tree

FLAT = [0.25, 0.25, 0.25, 0.25]  # entropy log 4: 0.3 · exp(-H) = 0.075
HALF = [0.5, 0.5, 0.0, 0.0]  # entropy log 2: 0.3 · exp(-H) = 0.15, above epsilon 0.09
SURE = [1.0, 0.0, 0.0, 0.0]  # entropy 0
STEEP = [0.91, 0.05, 0.03, 0.01]


@pytest.mark.parametrize(
    ("probs", "epsilon", "delta", "expected"),
    [
        (FLAT, 0.09, 0.3, 0.075),
        (HALF, 0.09, 0.3, 0.09),
        (HALF, 0.2, 0.3, 0.15),
        (SURE, 0.09, 0.3, 0.09),
        (SURE, 0.5, 0.3, 0.3),
        (FLAT, 0.5, 1.2, 0.3),
    ],
)
def test_threshold_by_hand(
    probs: list[float], epsilon: float, delta: float, expected: float
) -> None:
    found = typical.threshold(torch.tensor(probs), epsilon=epsilon, delta=delta)
    assert float(found) == pytest.approx(expected)


def test_the_defaults_are_medusas() -> None:
    assert (typical.EPSILON, typical.DELTA) == (0.09, 0.3)
    assert pytest.approx(math.sqrt(typical.EPSILON)) == typical.DELTA


def judged(
    tree: Tree, draft: list[int], target: list[list[float]], *, sample: float = 0.0, **own: float
) -> tuple[list[int], int]:
    numbers = Uniforms(torch.zeros(1, len(draft)), torch.full((1, tree.max_depth + 1), sample))
    tokens = torch.tensor([draft])
    verdict = typical.verify_tree(tree, tokens, None, torch.tensor([target]), numbers, **own)
    return verdict.nodes[0].tolist(), int(verdict.next_tokens)


@pytest.mark.parametrize(
    ("draft", "route"),
    [
        ([3, 0, 0], [0, 1, 2, 3]),  # 0.25 > 0.075, then 0.91 and 0.5 above 0.09
        ([3, 1, 0], [0, 1, -1, -1]),  # 0.05 is not above 0.09
        ([-1, 0, 0], [0, -1, -1, -1]),
        ([0, 0, 2], [0, 1, 2, -1]),  # probability 0
    ],
)
def test_the_longest_accepted_prefix_is_kept(draft: list[int], route: list[int]) -> None:
    assert judged(Tree.chain(3), draft, [FLAT, STEEP, HALF, SURE])[0] == route


def test_the_comparison_is_strict() -> None:
    """A probability of exactly epsilon is not above it (all numbers exact in binary)."""
    quarter = [0.25, 0.75, 0.0, 0.0]
    assert judged(Tree.chain(1), [0], [quarter, SURE], epsilon=0.25, delta=9.0)[0] == [0, -1]
    assert judged(Tree.chain(1), [0], [quarter, SURE], epsilon=0.24, delta=9.0)[0] == [0, 1]


def test_the_next_token_is_sampled_or_greedy() -> None:
    tree, target = Tree.chain(1), [STEEP, [0.4, 0.6, 0.0, 0.0]]
    assert judged(tree, [0], target, sample=0.39)[1] == 0
    assert judged(tree, [0], target, sample=0.41)[1] == 1
    assert judged(tree, [0], target, sample=0.39, greedy_next=True)[1] == 1
    assert judged(tree, [1], target, sample=0.999)[1] == 3  # after a refusal from the target too


def test_the_longest_route_wins_and_then_the_likeliest() -> None:
    tree = TREES["skew"]  # 0 -> 1, 2; 2 -> 3, 4; 3 -> 5
    wide = [0.6, 0.4, 0.0, 0.0]
    target = [wide, SURE, wide, [0.91, 0.09, 0.0, 0.0], SURE, SURE]
    # Node 1 (0.6) is likelier than 2 (0.4), but 2 leads on; 3 and 4 are siblings of 0.4 and 0.6.
    assert judged(tree, [0, 1, 1, 0, 1], target)[0] == [0, 2, 4, -1]
    assert judged(tree, [0, 1, 1, 0, 0], target)[0] == [0, 2, 3, 5]
    assert judged(tree, [0, 1, 3, 3, 0], target)[0] == [0, 1, -1, -1]


@settings(deadline=None, max_examples=40)
@given(batches())
def test_it_is_the_plain_rule(case: Case) -> None:
    """Every node whose whole route is above the thresholds; deepest, then likeliest, then first."""
    tree, tokens, _, target, numbers = case
    verdict = typical.verify_tree(tree, tokens, None, target, numbers)
    for row in range(len(tokens)):
        scores = [plain(tree, tokens[row], target[row], node) for node in range(tree.num_nodes)]
        best = max(score for score in scores if score)
        assert int(verdict.num_accepted[row]) == best[0]
        found = plain(tree, tokens[row], target[row], int(verdict.nodes[row, best[0]]))
        assert found is not None
        assert found[1] == pytest.approx(best[1], rel=1e-4)


def plain(
    tree: Tree, tokens: torch.Tensor, target: torch.Tensor, node: int
) -> tuple[int, float] | None:
    """Depth and likelihood of an accepted route, None for another."""
    likelihood = 1.0
    for step in tree.route(node)[1:]:
        probs = target[tree.parents[step]].double()
        entropy = -sum(float(p) * math.log(float(p)) for p in probs if p > 0)
        token = int(tokens[step - 1])
        if token < 0 or float(probs[token]) <= min(0.09, 0.3 * math.exp(-entropy)):
            return None
        likelihood *= float(probs[token])
    return tree.depths[node], likelihood


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.3), (1.0, 0.3), (0.09, 0.0), (-1.0, 0.3)])
def test_thresholds_out_of_range_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="epsilon|delta"):
        judged(Tree.chain(1), [0], [FLAT, FLAT], epsilon=epsilon, delta=delta)


def test_the_next_token_has_the_targets_distribution() -> None:
    """Chi-square on 20,000 draws after one accepted token; fails once in 10^6 seeds."""
    num, generator = 20_000, torch.Generator().manual_seed(5)
    target = torch.tensor([FLAT, STEEP])
    numbers = Uniforms(torch.zeros(num, 1), torch.rand(num, 2, generator=generator))
    drafted = torch.full((num, 1), 2)
    verdict = typical.verify(drafted, None, target.expand(num, 2, 4), numbers)
    assert bool((verdict.num_accepted == 1).all())
    counts = torch.bincount(verdict.next_tokens, minlength=4)
    assert laws.chi_square_p_value(counts, target[1]) > 1e-6
    assert laws.chi_square_p_value(counts, target[0]) < 1e-6
