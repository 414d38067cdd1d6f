"""Lenience: the bound of the paper, the limits, and that it is lenient at all."""

from __future__ import annotations

import pytest
import rule_laws as laws
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import TREES, Case, batches
from rule_laws import Algorithm, World
from torch import Tensor

from neuron_spec.rules import Uniforms, lenience, rejection

worlds = st.builds(
    World,
    seed=st.integers(0, 2**31),
    sharpness=st.sampled_from([0.5, 2.0, 8.0]),
    num_impossible=st.integers(0, 1),
)


def algorithm(world: World, shape: str, value: float, kind: str | None) -> Algorithm:
    tree = TREES[shape]
    drawn = laws.top_tokens(world, tree) if kind is None else lambda prefix, _: world.draft(prefix)
    return Algorithm(world, tree, drawn, siblings=kind, lenience=value)


@pytest.mark.parametrize("kind", [None, "with-replacement", "without-replacement"])
@pytest.mark.parametrize("shape", ["chain", "comb", "wide"])
@settings(deadline=None, max_examples=5)
@given(world=worlds, value=st.sampled_from([0.05, 0.3, 0.7, 0.95]))
def test_no_token_comes_with_more_than_the_bound(
    world: World, value: float, shape: str, kind: str | None
) -> None:
    """Appendix A.5 of arXiv:2211.17192; for a block the bound holds token by token."""
    law = algorithm(world, shape, value, kind).block_law()
    assert float(law.sum()) == pytest.approx(1)
    for length in range(1, law.ndim + 1):
        marginal = law.sum(dim=later) if (later := tuple(range(length, law.ndim))) else law
        target = laws.joint(world.target, length)
        assert bool((marginal <= target / value**length + 1e-9).all())


def test_the_bound_is_reached_and_the_law_is_not_the_targets() -> None:
    """One draft that always says token 0, with l = 1/2: 0.2 becomes 0.4, all the bound allows."""
    world = World(0)
    world.target = lambda prefix: torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)  # type: ignore[method-assign]
    certain = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    law = Algorithm(world, TREES["chain"], lambda prefix, _: certain, lenience=0.5).block_law()
    torch.testing.assert_close(
        law.sum(dim=(1, 2, 3)), torch.tensor([0.4, 0.6 * 0.375, 0.6 * 0.625]).double()
    )


def test_the_residual_does_not_know_the_lenience() -> None:
    """Only the comparison is scaled: what is rejected is redrawn as in Algorithm 1."""
    target, draft = torch.tensor([[[0.5, 0.2, 0.3]] * 2]), torch.tensor([[[0.3, 0.6, 0.1]]])
    counts = torch.zeros(3)
    for cell in range(100):
        numbers = Uniforms(torch.tensor([[0.9]]), torch.full((1, 2), (cell + 0.5) / 100))
        verdict = lenience.verify(torch.tensor([[1]]), draft, target, numbers, lenience=0.5)
        assert int(verdict.num_accepted) == 0
        counts[verdict.next_tokens] += 1
    assert counts.tolist() == [50, 0, 50]


@settings(deadline=None, max_examples=30)
@given(batches(), st.sampled_from([None, "with-replacement", "without-replacement"]))
def test_lenience_one_is_rejection(case: Case, kind: str | None) -> None:
    tree, tokens, drafts, target, uniforms = case
    told = None if kind is None else drafts
    strict = rejection.verify_tree(tree, tokens, told, target, uniforms, siblings=kind)
    found = lenience.verify_tree(tree, tokens, told, target, uniforms, lenience=1.0, siblings=kind)
    assert found.nodes.equal(strict.nodes)
    assert found.next_tokens.equal(strict.next_tokens)


@settings(deadline=None, max_examples=30)
@given(batches())
def test_less_lenience_accepts_no_less(case: Case) -> None:
    """With the same numbers, along every first child: of chains the whole prefix."""
    _, tokens, drafts, target, uniforms = case
    k = tokens.shape[1]
    numbers = Uniforms(uniforms.accept, torch.zeros(len(tokens), k + 1))
    kept = [
        lenience.verify(tokens, drafts, target, numbers, lenience=value).num_accepted
        for value in (1.0, 0.5, 0.1)
    ]
    assert bool((kept[0] <= kept[1]).all() and (kept[1] <= kept[2]).all())


@pytest.mark.parametrize("value", [0.0, -0.5, 1.01, float("nan")])
def test_a_lenience_that_bounds_nothing_is_refused(value: float) -> None:
    tokens, target = torch.zeros(1, 0, dtype=torch.int64), torch.full((1, 1, 4), 0.25)
    numbers = Uniforms(torch.zeros(1, 0), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="lenience"):
        lenience.verify(tokens, None, target, numbers, lenience=value)
    with pytest.raises(ValueError, match="lenience"):
        lenience.verify_tree(TREES["root"], tokens, None, target, numbers, lenience=value)


def test_samples_fit_the_computed_law_and_not_the_targets() -> None:
    """Chi-square on 40,000 first tokens; a right rule fails once in 10^6 seeds."""
    world, generator = World(seed=2), torch.Generator().manual_seed(3)
    num = 40_000
    tokens, drafts, targets = laws.drafted_chain(world, 3, num, generator)
    uniforms = Uniforms(
        torch.rand(num, 3, generator=generator), torch.rand(num, 4, generator=generator)
    )
    verdict = lenience.verify(tokens, drafts, targets, uniforms, lenience=0.5)
    first = torch.where(verdict.num_accepted > 0, tokens[:, 0], verdict.next_tokens)
    counts = torch.bincount(first, minlength=3)
    law: Tensor = algorithm(world, "chain", 0.5, "with-replacement").block_law().sum(dim=(1, 2, 3))
    assert laws.chi_square_p_value(counts, law) > 1e-6
    assert laws.chi_square_p_value(counts, world.target(())) < 1e-6
