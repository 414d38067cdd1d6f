"""What holds for every rule: one table, chains as trees, rows that do not know each other."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import Case, batches, random_case

from neuron_spec import drafters
from neuron_spec.rules import CHAIN_RULES, NO_PROPOSAL, RULES, TREE_RULES, Uniforms
from neuron_spec.trees import Tree

NAMES = ("greedy", "rejection", "lenient", "typical", "sample-match")
OWN: dict[str, dict[str, Any]] = {"lenient": {"lenience": 0.5}}
SIBLINGS: dict[str, dict[str, Any]] = {
    "rejection": {"siblings": "with-replacement"},
    "lenient": {"lenience": 0.5, "siblings": "with-replacement"},
}


def test_the_tables_name_the_same_rules() -> None:
    assert set(CHAIN_RULES) == set(TREE_RULES) == set(NAMES)
    assert set(RULES) <= set(CHAIN_RULES)


def test_no_proposal_is_what_drafters_say() -> None:
    assert NO_PROPOSAL == drafters.NO_PROPOSAL


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("num_drafts", range(5))
@pytest.mark.parametrize("name", NAMES)
def test_a_chain_is_the_tree_of_one_branch(name: str, num_drafts: int, deterministic: bool) -> None:
    case = random_case(Tree.chain(num_drafts), batch=500, sharpness=1.0, seed=num_drafts)
    tree, tokens, drafts, target, uniforms = case
    own = OWN.get(name, {})
    told = None if deterministic else drafts
    chain = CHAIN_RULES[name](tokens, told, target, uniforms, **own)
    branch = TREE_RULES[name](tree, tokens, told, target, uniforms, **own)
    assert branch.num_accepted.tolist() == chain.num_accepted.tolist()
    assert branch.next_tokens.tolist() == chain.next_tokens.tolist()
    for route, kept in zip(branch.nodes.tolist(), chain.num_accepted.tolist(), strict=True):
        assert route == [*range(kept + 1), *[-1] * (tree.max_depth - kept)]


@settings(deadline=None, max_examples=30)
@given(batches(), st.sampled_from(NAMES))
def test_rows_of_a_batch_do_not_know_each_other(case: Case, name: str) -> None:
    tree, tokens, drafts, target, uniforms = case
    rule = partial(TREE_RULES[name], tree, **SIBLINGS.get(name, {}))
    together = rule(tokens, drafts, target, uniforms)
    for row in range(len(tokens)):
        one = slice(row, row + 1)
        numbers = Uniforms(uniforms.accept[one], uniforms.sample[one])
        alone = rule(tokens[one], drafts[one], target[one], numbers)
        assert alone.nodes[0].tolist() == together.nodes[row].tolist()
        assert int(alone.next_tokens) == int(together.next_tokens[row])


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(case=batches(Tree.chain(3)), width=st.integers(0, 2))
def test_places_without_proposal_are_as_if_they_were_not_there(
    case: Case, name: str, width: int
) -> None:
    """A chain cut by NO_PROPOSAL and a shorter chain have the same verdict, number for number."""
    _, tokens, drafts, target, uniforms = case
    tokens = tokens.clamp(min=0)
    padded = tokens.clone()
    padded[:, width:] = NO_PROPOSAL
    rule = partial(CHAIN_RULES[name], **OWN.get(name, {}))
    short = Uniforms(uniforms.accept[:, :width], uniforms.sample[:, : width + 1])
    long = rule(padded, drafts, target, uniforms)
    cut = rule(tokens[:, :width], drafts[:, :width], target[:, : width + 1], short)
    assert long.num_accepted.equal(cut.num_accepted)
    assert long.next_tokens.equal(cut.next_tokens)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(case=batches())
def test_verdicts_are_whole_and_possible(case: Case, name: str) -> None:
    """Routes go down the tree over proposals, and the next token is one the target can say."""
    tree, tokens, _, target, uniforms = case
    target = target.clone()
    target[..., 0] = 0
    verdict = TREE_RULES[name](tree, tokens, None, target, uniforms, **OWN.get(name, {}))
    for row, kept in enumerate(verdict.num_accepted.tolist()):
        route = verdict.nodes[row].tolist()
        assert route[kept + 1 :] == [-1] * (tree.max_depth - kept)
        for parent, node in zip(route[:kept], route[1 : kept + 1], strict=True):
            assert tree.parents[node] == parent
            assert int(tokens[row, node - 1]) > 0
    assert bool((verdict.next_tokens > 0).all())
    assert verdict.num_accepted.dtype == verdict.next_tokens.dtype == torch.int64
    assert verdict.nodes.dtype == torch.int64


@pytest.mark.parametrize("name", ["rejection", "lenient", "typical", "sample-match"])
@settings(deadline=None, max_examples=15)
@given(case=batches())
def test_a_one_hot_target_makes_every_rule_greedy(case: Case, name: str) -> None:
    """Temperature 0 is no case of its own."""
    tree, tokens, _, target, uniforms = case
    one_hot = torch.nn.functional.one_hot(target.argmax(dim=-1), target.shape[-1]).float()
    found = TREE_RULES[name](tree, tokens, None, one_hot, uniforms, **OWN.get(name, {}))
    greedy = TREE_RULES["greedy"](tree, tokens, None, one_hot, uniforms)
    assert found.nodes.equal(greedy.nodes) or has_twin_siblings(tree, tokens)
    assert found.next_tokens.equal(greedy.next_tokens) or has_twin_siblings(tree, tokens)


def has_twin_siblings(tree: Tree, tokens: torch.Tensor) -> bool:
    """Two siblings with one token: which of them is followed differs between rules."""
    for row in tokens.tolist():
        for below in tree.children:
            drafted = [row[node - 1] for node in below]
            if len(set(drafted)) < len(drafted):
                return True
    return False


@pytest.mark.parametrize(
    ("drafts", "probs", "targets", "accept", "sample"),
    [
        ((1, 2), None, (1, 2, 4), (1, 2), (1, 3)),
        ((1, 2), None, (2, 3, 4), (1, 2), (1, 3)),
        ((1, 2), (1, 3, 4), (1, 3, 4), (1, 2), (1, 3)),
        ((1, 2), (1, 2, 5), (1, 3, 4), (1, 2), (1, 3)),
        ((1, 2), None, (1, 3, 4), (1, 3), (1, 3)),
        ((1, 2), None, (1, 3, 4), (1, 2), (1, 1)),
        ((1, 2), None, (1, 3, 4), (2, 2), (1, 3)),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(
    drafts: tuple[int, ...],
    probs: tuple[int, ...] | None,
    targets: tuple[int, ...],
    accept: tuple[int, ...],
    sample: tuple[int, ...],
) -> None:
    for name in ("rejection", "lenient") if probs else NAMES[1:]:
        with pytest.raises(ValueError, match="expected"):
            CHAIN_RULES[name](
                torch.zeros(drafts, dtype=torch.int64),
                None if probs is None else torch.full(probs, 0.25),
                torch.full(targets, 0.25),
                Uniforms(torch.zeros(accept), torch.zeros(sample)),
                **OWN.get(name, {}),
            )
