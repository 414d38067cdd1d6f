"""What the trial does case by case: against a plain walk, at the edges, in half types."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import TREES, Case, batches, random_case

from neuron_spec.rules import Uniforms, rejection, trials
from neuron_spec.trees import Tree

KINDS = ("deterministic", "with-replacement", "without-replacement")


@pytest.mark.parametrize("lenience", [1.0, 0.4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", TREES)
def test_the_batch_does_what_a_plain_walk_does(shape: str, kind: str, lenience: float) -> None:
    case = random_case(TREES[shape], batch=200, sharpness=1.0, seed=1)
    tree, tokens, drafts, target, uniforms = case
    told = None if kind == "deterministic" else drafts
    verdict = trials.judge_tree(
        tree, tokens, told, target, uniforms, lenience=lenience, siblings=kind
    )
    for row in range(len(tokens)):
        route, token = plain_walk(
            tree,
            tokens[row].tolist(),
            None if told is None else told[row].tolist(),
            target[row].tolist(),
            (uniforms.accept[row].tolist(), uniforms.sample[row].tolist()),
            lenience,
            replace=kind != "without-replacement",
        )
        assert verdict.nodes[row].tolist()[: len(route)] == route
        assert int(verdict.num_accepted[row]) == len(route) - 1
        assert int(verdict.next_tokens[row]) == token


def plain_walk(
    tree: Tree,
    tokens: list[int],
    drafts: list[list[float]] | None,
    targets: list[list[float]],
    numbers: tuple[list[float], list[float]],
    lenience: float,
    *,
    replace: bool,
) -> tuple[list[int], int]:
    """One row, token by token, in plain Python."""
    accept, sample = numbers
    route = [0]
    while True:
        probs, tried, went_on = targets[route[-1]], set(), False
        for child in tree.children[route[-1]]:
            token = tokens[child - 1]
            if token < 0:
                continue
            one_hot = [float(i == token) for i in range(len(probs))]
            drawn = one_hot if drafts is None else drafts[child - 1]
            if not replace:
                drawn = [0.0 if i in tried else prob for i, prob in enumerate(drawn)]
                drawn = [prob / sum(drawn) for prob in drawn] if sum(drawn) > 0 else drawn
            drawn = drawn if drawn[token] > 0 else one_hot
            if accept[child - 1] < probs[token] / (lenience * drawn[token]):
                route.append(child)
                went_on = True
                break
            rest = [max(0.0, t - d) for t, d in zip(probs, drawn, strict=True)]
            probs = [r / sum(rest) for r in rest] if sum(rest) > 0 else probs
            tried.add(token)
        if not went_on:
            break
    point, reached = sample[len(route) - 1] * sum(probs), 0.0
    for token, prob in enumerate(probs):
        reached += prob
        if prob > 0 and reached > point:
            return route, token
    raise AssertionError("a number beyond all shares")


@settings(deadline=None, max_examples=30)
@given(batches(), st.sampled_from([torch.bfloat16, torch.float16]))
def test_half_types_are_judged_in_float32(case: Case, dtype: torch.dtype) -> None:
    tree, tokens, drafts, target, uniforms = case
    half = (drafts.to(dtype), target.to(dtype))
    judge = partial(rejection.verify_tree, tree, tokens, siblings="without-replacement")
    rounded, wide = judge(*half, uniforms), judge(*(part.float() for part in half), uniforms)
    assert rounded.nodes.equal(wide.nodes)
    assert rounded.next_tokens.equal(wide.next_tokens)


@settings(deadline=None, max_examples=30)
@given(batches(Tree.chain(3)))
def test_a_draft_equal_to_the_target_is_always_accepted(
    case: Case,
) -> None:
    _, tokens, _, target, uniforms = case
    most = Uniforms(torch.full_like(uniforms.accept, 1 - 2.0**-24), uniforms.sample)
    verdict = rejection.verify(tokens.clamp(min=0), target[:, :-1], target, most)
    assert verdict.num_accepted.tolist() == [3] * len(tokens)


@settings(deadline=None, max_examples=30)
@given(batches(), st.booleans())
def test_a_draft_that_the_target_excludes_is_never_accepted(
    case: Case, deterministic: bool
) -> None:
    tree, tokens, drafts, target, uniforms = case
    target = torch.nn.functional.pad(target, (0, 1))  # id 4: the target never says it
    drafts = torch.nn.functional.one_hot(torch.full(tokens.shape, 4), 5).float()
    least = Uniforms(torch.zeros_like(uniforms.accept), uniforms.sample)
    verdict = rejection.verify_tree(
        tree,
        torch.full_like(tokens, 4),
        None if deterministic else drafts,
        target,
        least,
        siblings="without-replacement",
    )
    assert verdict.num_accepted.tolist() == [0] * len(tokens)
    assert bool((verdict.next_tokens < 4).all())


def step(
    draft: list[int],
    probs: list[list[float]] | None,
    target: list[list[float]],
    **numbers: list[float],
) -> tuple[int, int]:
    verdict = rejection.verify(
        torch.tensor([draft]).long().reshape(1, -1),
        None if probs is None else torch.tensor([probs]),
        torch.tensor([target]),
        Uniforms(
            torch.tensor([numbers["accept"]]).reshape(1, -1), torch.tensor([numbers["sample"]])
        ),
    )
    return int(verdict.num_accepted), int(verdict.next_tokens)


FIRST, SECOND, THIRD = [0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0]


def test_without_proposal_the_token_comes_from_the_target_itself() -> None:
    """Not from a residual, and with the number of its own place."""
    target = [FIRST, SECOND, THIRD]
    assert step([-1, -1], None, target, accept=[0.0, 0.0], sample=[0.6, 0.0, 0.0]) == (0, 1)
    assert step([0, -1], None, target, accept=[0.49, 0.0], sample=[0.0, 0.15, 0.9]) == (1, 1)
    # The proposal behind a gap is out of reach.
    assert step([-1, 2], None, target, accept=[0.0, 0.0], sample=[0.0, 0.9, 0.9]) == (0, 0)


def test_a_rejected_token_is_not_drawn_again_from_a_deterministic_draft() -> None:
    for sample in (0.0, 0.3, 0.6, 0.999):
        kept, token = step([0], None, [FIRST, SECOND], accept=[0.5], sample=[sample, 0.0])
        assert (kept, token) == (0, 1 if sample < 0.6 else 2)


def test_zero_residual_falls_back_to_the_target() -> None:
    """Draft and target one-hot and equal up to rounding: a rejection is rounding, not a NaN."""
    almost = [[1.0000001, 0.0, 0.0]]
    found = step([0], almost, [[1.0, 0.0, 0.0], THIRD], accept=[1 - 2.0**-24], sample=[0.5, 0.5])
    assert found == (0, 0)


def test_a_token_that_its_distribution_cannot_give_counts_as_given() -> None:
    """Accepted with the target's probability, not always; on rejection it cannot come back."""
    stated, target = [[0.0, 0.5, 0.5]], [FIRST, SECOND]
    assert step([0], stated, target, accept=[0.49], sample=[0.0, 0.99]) == (1, 2)
    assert step([0], stated, target, accept=[0.51], sample=[0.0, 0.99]) == (0, 1)


def test_siblings_have_to_be_said_where_it_matters() -> None:
    tree, uniforms = TREES["fork"], Uniforms(torch.zeros(1, 2), torch.zeros(1, 2))
    flat = torch.full((1, 3, 4), 0.25)
    tokens = torch.tensor([[0, 1]])
    with pytest.raises(ValueError, match="siblings"):
        rejection.verify_tree(tree, tokens, flat[:, :2], flat, uniforms)
    rejection.verify_tree(tree, tokens, None, flat, uniforms)


def test_more_of_a_wide_tree_is_accepted_than_of_its_first_branch() -> None:
    """The second child is judged by the residual: 0.5, then 0.3 of the 0.5 that is left."""
    tree, target = TREES["fork"], torch.tensor([[FIRST, SECOND, THIRD]])
    tokens = torch.tensor([[0, 1]])

    def nodes(first: float, second: float) -> list[int]:
        uniforms = Uniforms(torch.tensor([[first, second]]), torch.tensor([[0.5, 0.5]]))
        return rejection.verify_tree(tree, tokens, None, target, uniforms).nodes[0].tolist()

    assert nodes(0.49, 0.0) == [0, 1]
    assert nodes(0.51, 0.59) == [0, 2]
    assert nodes(0.51, 0.61) == [0, -1]


def test_it_accepts_and_resamples_as_nxdi_does() -> None:
    """Recorded from NxDI 0.9, draft third in the target's list: there ids are ranks in the list.

    NxDI draws along that list, so ids are renamed to ranks here; the draft is greedy, one-hot.
    """
    rows = [
        [
            0.64169979,
            0.11375491,
            0.10567643,
            0.06039772,
            0.05063377,
            0.01950311,
            0.00729855,
            0.00103572,
        ],
        [
            0.82585949,
            0.06424765,
            0.05853779,
            0.01843105,
            0.01327146,
            0.01219625,
            0.00536235,
            0.00209395,
        ],
    ]
    adjusted = [
        0.87720937,
        0.06824242,
        0.0,
        0.01957704,
        0.01409664,
        0.01295458,
        0.00569577,
        0.00222414,
    ]
    target = torch.tensor([rows])
    drafted = torch.nn.functional.one_hot(torch.tensor(2), 8).float()
    torch.testing.assert_close(trials.residual(target[0, 1], drafted), torch.tensor(adjusted))
    three = [*rows, rows[1]]
    assert step([2, 2], None, three, accept=[0.02, 0.5], sample=[0.5, 0.5, 0.5]) == (1, 0)
