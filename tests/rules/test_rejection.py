"""Rejection sampling keeps the target's distribution: proved on small worlds, not sampled."""

from __future__ import annotations

from functools import partial

import pytest
import rule_laws as laws
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import TREES
from rule_laws import Algorithm, World
from torch import Tensor

from neuron_spec.rules import Uniforms, rejection, trials
from neuron_spec.trees import Tree

EXACT = 1e-6
worlds = st.builds(
    World,
    seed=st.integers(0, 2**31),
    vocab=st.sampled_from([3, 4]),
    sharpness=st.sampled_from([0.0, 0.5, 2.0, 8.0]),
    num_impossible=st.integers(0, 2),
)
quarter_worlds = st.builds(World, seed=st.integers(0, 2**31), quarters=st.just(True))


def drawn_by(world: World, tree: Tree, kind: str) -> Algorithm:
    """The three ways in which siblings come about."""
    if kind == "deterministic":
        return Algorithm(world, tree, laws.top_tokens(world, tree))
    if kind == "own":  # independent, each sibling from a draft of its own
        return Algorithm(world, tree, world.draft, siblings="with-replacement")
    return Algorithm(world, tree, lambda prefix, _: world.draft(prefix), siblings=kind)


KINDS = ("deterministic", "with-replacement", "without-replacement", "own")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", TREES)
@settings(deadline=None, max_examples=5)
@given(world=worlds)
def test_the_law_of_a_block_is_the_targets(world: World, shape: str, kind: str) -> None:
    tree = TREES[shape]
    law = drawn_by(world, tree, kind).block_law()
    torch.testing.assert_close(
        law, laws.joint(world.target, tree.max_depth + 1), rtol=0, atol=EXACT
    )


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("num_drafts", [0, 1, 2])
@settings(deadline=None, max_examples=5)
@given(world=quarter_worlds)
def test_the_rule_itself_has_the_targets_law(
    world: World, num_drafts: int, deterministic: bool
) -> None:
    law = laws.grid_law(rejection.verify, world, num_drafts, deterministic=deterministic)
    torch.testing.assert_close(law, laws.joint(world.target, num_drafts + 1), rtol=0, atol=EXACT)


def test_the_rule_itself_has_the_targets_law_on_three_drafts() -> None:
    world = World(seed=5, vocab=2, quarters=True)
    law = laws.grid_law(rejection.verify, world, 3)
    torch.testing.assert_close(law, laws.joint(world.target, 4), rtol=0, atol=EXACT)


@pytest.mark.parametrize("shape", ["fork", "comb", "wide"])
def test_the_tree_rule_itself_has_the_targets_law(shape: str) -> None:
    """The black box on deterministic trees: one draft a world, so that no draw is needed."""
    tree = TREES[shape]
    for seed in range(3):
        world = World(seed, quarters=True)
        assert tree_grid_error(world, tree, rejection.verify_tree) < EXACT


def tree_grid_error(world: World, tree: Tree, rule: laws.Rule) -> float:
    """Largest difference of the first token's law; numbers of deeper nodes do not matter to it."""
    choice = laws.top_tokens(world, tree)
    tokens: list[laws.Prefix] = [()]
    for node in range(1, tree.num_nodes):
        prefix = tokens[tree.parents[node]]
        tokens.append((*prefix, int(choice(prefix, node).argmax())))
    width = len(tree.children[0])
    cells = (torch.arange(laws.GRID, dtype=torch.float64) + 0.5) / laws.GRID
    numbers = torch.cartesian_prod(*[cells] * (width + 1))
    accept = numbers.new_full((len(numbers), tree.num_draft_tokens), 1 - 1e-9)
    accept[:, :width] = numbers[:, :width]
    sample = numbers[:, -1:].expand(-1, tree.max_depth + 1)
    draft = torch.tensor([path[-1] for path in tokens[1:]]).expand(len(numbers), -1)
    target = torch.stack([world.target(path) for path in tokens]).expand(len(numbers), -1, -1)
    verdict = rule(tree, draft, None, target, Uniforms(accept, sample))
    kept = draft.gather(1, (verdict.nodes[:, 1:2] - 1).clamp(min=0)).squeeze(1)
    first = torch.where(verdict.num_accepted > 0, kept, verdict.next_tokens)
    law = torch.bincount(first, minlength=world.vocab).double() / len(numbers)
    return float((law - world.target(())).abs().max())


# Deliberately wrong variants: the same tests must see them.


def worst_error(wrong: Algorithm) -> float:
    law = laws.joint(wrong.world.target, wrong.length)
    return float((wrong.block_law() - law).abs().max())


def softmaxed(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    return (target_probs - draft_probs).clamp(min=0).softmax(dim=-1)


@pytest.mark.parametrize("shape", ["chain", "fork", "comb"])
def test_wrong_algorithms_are_seen(shape: str) -> None:
    world, tree = World(seed=1, vocab=3), TREES[shape]
    told = {"siblings": "without-replacement"}
    right = partial(Algorithm, world, tree, lambda prefix, _: world.draft(prefix), **told)
    assert worst_error(right()) < EXACT
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert worst_error(right(stated=lambda prefix, _: uniform)) > 1e-3
    assert worst_error(right(rest=softmaxed)) > 1e-3
    assert worst_error(right(rest=lambda target, _: target)) > 1e-3
    assert worst_error(right(rest_prefix=lambda prefix, token: (*prefix, token))) > 1e-3
    assert worst_error(right(lenience=0.5)) > 1e-3


def test_siblings_judged_by_the_wrong_draft_are_seen() -> None:
    """Drawn without replacement, but judged as if the older siblings could come again."""

    class Forgetful(Algorithm):
        def _left_over(self, probs: Tensor, tried: laws.Prefix) -> Tensor:
            return probs

    world = World(seed=1, vocab=4)
    told = (world, TREES["wide"], lambda prefix, _: world.draft(prefix))
    assert worst_error(Algorithm(*told, siblings="without-replacement")) < EXACT
    assert worst_error(Forgetful(*told, siblings="without-replacement")) > 1e-3


@pytest.mark.parametrize("wrong", ["draft_probs", "residual", "row"])
def test_wrong_rules_are_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule: laws.Rule = rejection.verify
    if wrong == "draft_probs":

        def rule(draft: Tensor, probs: Tensor, target: Tensor, uniforms: Uniforms) -> object:
            return rejection.verify(draft, torch.full_like(probs, 1 / 3), target, uniforms)

    elif wrong == "residual":
        monkeypatch.setattr(trials, "residual", softmaxed)
    else:  # the row after the rejected token instead of the one before it
        row = trials._row
        monkeypatch.setattr(
            trials, "_row", lambda probs, rows: row(probs, (rows + 1).clamp(max=probs.shape[1] - 1))
        )
    errors = []
    for seed in range(3):  # some worlds forgive: their draft is right by chance
        world = World(seed, quarters=True)
        errors.append(laws.grid_law(rule, world, 2) - laws.joint(world.target, 3))
    assert float(torch.stack(errors).abs().max()) > 0.05


@pytest.mark.parametrize("told", [True, False])
def test_samples_fit_the_target_and_a_wrong_draft_is_found_out(told: bool) -> None:
    """Chi-square on 40,000 blocks of a chain of two; a right rule fails once in 10^6 seeds."""
    world, generator = World(seed=11), torch.Generator().manual_seed(7)
    num = 40_000
    tokens, drafts, targets = laws.drafted_chain(world, 2, num, generator)
    uniforms = Uniforms(
        torch.rand(num, 2, generator=generator), torch.rand(num, 3, generator=generator)
    )
    stated = drafts if told else torch.full_like(drafts, 1 / 3)
    verdict = rejection.verify(tokens, stated, targets, uniforms)
    first = torch.where(verdict.num_accepted > 0, tokens[:, 0], verdict.next_tokens)
    p_value = laws.chi_square_p_value(torch.bincount(first, minlength=3), world.target(()))
    assert (p_value > 1e-6) == told
    longer = verdict.num_accepted > 0
    second = torch.where(verdict.num_accepted > 1, tokens[:, 1], verdict.next_tokens)[longer]
    pairs = torch.bincount(tokens[longer, 0] * 3 + second, minlength=9).reshape(3, 3)
    for token in range(3):
        fits = laws.chi_square_p_value(pairs[token], world.target((token,))) > 1e-6
        assert fits or not told
