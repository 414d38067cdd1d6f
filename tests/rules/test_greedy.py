"""The greedy rule against the same rule in plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.rules import CHAIN_RULES, RULES, Uniforms
from neuron_spec.rules.greedy import follow, verify, verify_tree
from neuron_spec.rules.verdict import NO_PROPOSAL
from neuron_spec.trees import Tree

NUM_TOKENS = 4
Chains = list[list[int]]
Logits = list[list[list[int]]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Chains, Logits]:
    """Drafted ids and small integer logits, so that ties and matches are common."""
    batch, k = draw(st.integers(1, 4)), draw(st.integers(0, 5))
    row = st.lists(st.integers(-2, 2), min_size=NUM_TOKENS, max_size=NUM_TOKENS)
    token = st.integers(0, NUM_TOKENS - 1)
    logits = [draw(st.lists(row, min_size=k + 1, max_size=k + 1)) for _ in range(batch)]
    chains = [draw(st.lists(token, min_size=k, max_size=k)) for _ in range(batch)]
    for chain, rows in zip(chains, logits, strict=True):
        follows = draw(st.integers(0, k))  # so that long accepted prefixes are common
        chain[:follows] = [row.index(max(row)) for row in rows[:follows]]
    return chains, logits


def plain(chain: list[int], rows: list[list[int]]) -> tuple[int, int]:
    """One row: walk along the chain while the target agrees; the lowest id wins a tie."""
    accepted = 0
    for drafted, row in zip(chain, rows[:-1], strict=True):
        if drafted != row.index(max(row)):
            break
        accepted += 1
    return accepted, rows[accepted].index(max(rows[accepted]))


@settings(deadline=None, max_examples=150)
@given(cases(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_it_is_the_plain_rule(case: tuple[Chains, Logits], dtype: torch.dtype) -> None:
    chains, logits = case
    drafted = torch.tensor(chains, dtype=torch.long).reshape(len(chains), -1)
    verdict = verify(drafted, torch.tensor(logits, dtype=dtype))
    expected = [plain(chain, rows) for chain, rows in zip(chains, logits, strict=True)]
    assert verdict.num_accepted.tolist() == [accepted for accepted, _ in expected]
    assert verdict.next_tokens.tolist() == [token for _, token in expected]
    assert verdict.num_accepted.dtype == verdict.next_tokens.dtype == torch.int64


def one_hot(*tokens: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor([tokens]), 8).float()


def test_everything_accepted_gives_the_bonus_token() -> None:
    verdict = verify(torch.tensor([[3, 5]]), one_hot(3, 5, 7))
    assert (verdict.num_accepted.item(), verdict.next_tokens.item()) == (2, 7)


def test_a_match_after_a_mismatch_does_not_count() -> None:
    verdict = verify(torch.tensor([[3, 4, 6]]), one_hot(3, 5, 6, 7))
    assert (verdict.num_accepted.item(), verdict.next_tokens.item()) == (1, 5)


def test_nothing_drafted_is_plain_decoding() -> None:
    verdict = verify(torch.empty(1, 0, dtype=torch.long), one_hot(6))
    assert (verdict.num_accepted.item(), verdict.next_tokens.item()) == (0, 6)


@pytest.mark.parametrize(
    ("draft", "target"),
    [
        ((1, 2), (1, 2, 8)),
        ((1, 2), (1, 4, 8)),
        ((1, 2), (2, 3, 8)),
        ((2,), (1, 3, 8)),
        ((1, 2), (1, 3)),
        ((1, 2), (1, 3, 8, 1)),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(
    draft: tuple[int, ...], target: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError):
        verify(torch.zeros(draft, dtype=torch.long), torch.zeros(target))


def test_the_message_names_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2, 8\).*\(1, 2\).*\[1, 3, vocab\]"):
        verify(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, 8))


def test_the_dispatch_table_names_it() -> None:
    assert RULES["greedy"] is verify


NO_NUMBERS = Uniforms(torch.empty(0), torch.empty(0))
TREE = Tree.from_paths([[0], [1], [0, 0], [1, 0], [1, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("target", "route", "next_token"),
    [
        # The target's choice after the root and after each of the six nodes; drafted are the ids
        # 1 and 2 after the root, 3 after 1, 4 and 5 after 2, 6 after 5.
        ((7, 0, 0, 0, 0, 0, 0), (0, -1, -1, -1), 7),
        ((1, 7, 0, 0, 0, 0, 0), (0, 1, -1, -1), 7),
        ((1, 3, 0, 7, 0, 0, 0), (0, 1, 3, -1), 7),
        ((2, 3, 5, 0, 0, 6, 7), (0, 2, 5, 6), 7),
        ((2, 3, 4, 0, 6, 0, 0), (0, 2, 4, -1), 6),
        ((2, 3, 3, 0, 0, 0, 0), (0, 2, -1, -1), 3),
        ((3, 3, 5, 7, 6, 6, 6), (0, -1, -1, -1), 3),
    ],
)
def test_the_tree_is_followed_as_far_as_the_target_goes(
    target: tuple[int, ...], route: tuple[int, ...], next_token: int
) -> None:
    drafted = torch.tensor([[1, 2, 3, 4, 5, 6]])
    verdict = verify_tree(TREE, drafted, None, one_hot(*target), NO_NUMBERS)
    assert verdict.nodes.tolist() == [list(route)]
    assert verdict.next_tokens.tolist() == [next_token]
    assert verdict.num_accepted.tolist() == [sum(node > 0 for node in route)]


@st.composite
def known_ids(draw: st.DrawFn) -> tuple[Tree, list[int], list[int]]:
    """A tree, what is drafted in it (twins and empty places too), the target's ids of few."""
    size = draw(st.integers(0, 7))
    parents = [draw(st.integers(0, node)) for node in range(size)]
    ids = st.lists(st.integers(NO_PROPOSAL, 2), min_size=size, max_size=size)
    best = st.lists(st.integers(0, 2), min_size=size + 1, max_size=size + 1)
    return Tree((-1, *parents)), draw(ids), draw(best)


@settings(deadline=None, max_examples=200)
@given(known_ids())
def test_where_ids_are_known_it_is_the_same_rule(case: tuple[Tree, list[int], list[int]]) -> None:
    tree, drafted, best = case
    tokens = torch.tensor([drafted], dtype=torch.long).reshape(1, -1)
    expected = verify_tree(tree, tokens, None, one_hot(*best), NO_NUMBERS)
    nodes, next_token = follow(tree, drafted, best)
    assert [*nodes, *[-1] * (tree.max_depth + 1 - len(nodes))] == expected.nodes[0].tolist()
    assert next_token == expected.next_tokens.item()


def test_the_uniform_signature_ignores_draft_and_numbers() -> None:
    drafted, target = torch.tensor([[3, 5]]), one_hot(3, 4, 7)
    verdict = CHAIN_RULES["greedy"](drafted, None, target, NO_NUMBERS)
    assert (verdict.num_accepted.item(), verdict.next_tokens.item()) == (1, 4)


def test_a_tree_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="for this tree"):
        verify_tree(TREE, torch.zeros(1, 5).long(), None, one_hot(*[0] * 6), NO_NUMBERS)
    with pytest.raises(ValueError, match="does not score"):
        verify_tree(TREE, torch.zeros(1, 6).long(), None, one_hot(*[0] * 6), NO_NUMBERS)
