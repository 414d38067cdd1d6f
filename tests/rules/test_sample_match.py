"""Sample match: the law of rejection, and the same output whatever the draft."""

from __future__ import annotations

import pytest
import rule_laws as laws
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import TREES, Case, batches
from rule_laws import World

from neuron_spec.rules import CHAIN_RULES, Uniforms, sample_match
from neuron_spec.sampling import sample
from neuron_spec.trees import Tree

quarter_worlds = st.builds(World, seed=st.integers(0, 2**31), quarters=st.just(True))


def per_row_grid(rule: laws.Rule, world: World, draft: tuple[int, ...]) -> torch.Tensor:
    """The law of output blocks over a grid of one number a row: exact for quarters."""
    k = len(draft)
    cells = (torch.arange(4, dtype=torch.float64) + 0.5) / 4
    numbers = torch.cartesian_prod(*[cells] * (k + 1)).reshape(-1, k + 1)
    batch = len(numbers)
    rows = torch.stack([world.target(draft[:i]) for i in range(k + 1)]).expand(batch, -1, -1)
    tokens = torch.tensor(draft).expand(batch, -1)
    verdict = rule(tokens, None, rows, Uniforms(numbers[:, :-1], numbers))
    law = torch.zeros([world.vocab] * (k + 1), dtype=torch.float64)
    pairs = zip(verdict.num_accepted.tolist(), verdict.next_tokens.tolist(), strict=True)
    for kept, token in pairs:
        output = (*draft[:kept], token)
        law[output] += laws.joint(world.target, k - kept, output) / batch
    return law


@settings(deadline=None, max_examples=10)
@given(quarter_worlds, st.lists(st.integers(0, 2), min_size=1, max_size=3))
def test_the_law_of_a_block_is_the_targets_and_that_of_rejection(
    world: World, draft: list[int]
) -> None:
    law = per_row_grid(sample_match.verify, world, tuple(draft))
    torch.testing.assert_close(law, laws.joint(world.target, len(draft) + 1), rtol=0, atol=1e-9)


def test_a_number_shared_by_all_rows_is_seen() -> None:
    """NxDI 0.9 shares one number between rows; a rule that samples by it has another law."""

    def shared(draft, probs, target, uniforms):  # type: ignore[no-untyped-def]
        same = uniforms.sample[:, :1].expand_as(uniforms.sample)
        return sample_match.verify(draft, probs, target, Uniforms(uniforms.accept, same))

    world = World(seed=1, quarters=True)
    law = per_row_grid(shared, world, (0, 1))
    assert float((law - laws.joint(world.target, 3)).abs().max()) > 0.01


def decode(world: World, tree_of: object, draft_seed: int, *, seed: int, length: int) -> list[int]:
    """A whole decoding with position-tied numbers; proposals at random, some of them right."""
    generator = torch.Generator().manual_seed(draft_seed)
    output: list[int] = []
    while len(output) < length:
        tree: Tree = tree_of(generator)  # type: ignore[operator]
        draft = torch.randint(-1, world.vocab, (1, tree.num_draft_tokens), generator=generator)
        paths: list[tuple[int, ...]] = [tuple(output)]
        for node in range(1, tree.num_nodes):
            paths.append((*paths[tree.parents[node]], int(draft[0, node - 1])))
        target = torch.stack([world.target(path[-3:]) for path in paths])[None].float()
        numbers = Uniforms.at_positions(torch.tensor([seed]), torch.tensor([len(output)]), tree)
        verdict = sample_match.verify_tree(tree, draft, None, target, numbers)
        route = verdict.nodes[0, 1 : int(verdict.num_accepted) + 1].tolist()
        output += [int(draft[0, node - 1]) for node in route] + [int(verdict.next_tokens)]
    return output[:length]


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**31), st.integers(-(2**62), 2**62))
def test_the_output_does_not_depend_on_the_draft_bit_by_bit(world_seed: int, seed: int) -> None:
    world = World(world_seed)
    shapes = list(TREES.values())

    def nothing(_: torch.Generator) -> Tree:
        return Tree.chain(0)

    def anything(generator: torch.Generator) -> Tree:
        return shapes[int(torch.randint(len(shapes), (), generator=generator))]

    plain = decode(world, nothing, 0, seed=seed, length=24)
    for draft_seed in range(3):
        assert decode(world, anything, draft_seed, seed=seed, length=24) == plain
    assert decode(world, nothing, 0, seed=seed + 1, length=24) != plain


def test_rejection_does_depend_on_the_draft() -> None:
    """Same numbers, same target, other draft, other token: why only `sample-match` is invariant."""
    target = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])
    numbers = Uniforms(torch.tensor([[0.4]]), torch.tensor([[0.1, 0.1]]))
    found = set()
    for token in range(2):
        drafted = torch.tensor([[token]])
        kept = CHAIN_RULES["rejection"](drafted, None, target, numbers).num_accepted
        found.add(token if int(kept) else None)
    assert found == {0, 1}


@settings(deadline=None, max_examples=40)
@given(batches())
def test_it_follows_the_samples_of_every_node(case: Case) -> None:
    tree, tokens, drafts, target, numbers = case
    verdict = sample_match.verify_tree(tree, tokens, drafts, target, numbers)
    for row in range(len(tokens)):
        node, route = 0, [0]
        while True:
            number = numbers.sample[row, tree.depths[node]]
            wanted = int(sample(target[row, node], number))
            matches = [c for c in tree.children[node] if int(tokens[row, c - 1]) == wanted]
            if not matches:
                break
            node = matches[0]
            route.append(node)
        assert verdict.nodes[row, : len(route)].tolist() == route
        assert int(verdict.next_tokens[row]) == wanted


def test_samples_fit_the_target() -> None:
    """Chi-square on 20,000 first tokens with position-tied numbers; fails once in 10^6 seeds."""
    world, num = World(seed=4), 20_000
    tree = Tree.chain(1)
    numbers = Uniforms.at_positions(torch.arange(num), torch.full((num,), 17), tree)
    rows = torch.stack([world.target(()), world.target((1,))]).expand(num, -1, -1)
    tokens = torch.full((num, 1), 1)
    verdict = sample_match.verify(tokens, None, rows, numbers)
    first = torch.where(verdict.num_accepted > 0, tokens[:, 0], verdict.next_tokens)
    counts = torch.bincount(first, minlength=3)
    assert laws.chi_square_p_value(counts, world.target(())) > 1e-6
    second = torch.bincount(verdict.next_tokens[verdict.num_accepted > 0], minlength=3)
    assert laws.chi_square_p_value(second, world.target((1,))) > 1e-6
    assert laws.chi_square_p_value(counts, torch.full((3,), 1 / 3)) < 1e-6


@pytest.mark.parametrize("shape", TREES)
def test_the_draft_distribution_does_not_count(shape: str) -> None:
    tree = TREES[shape]
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, (3, tree.num_draft_tokens), generator=generator)
    target = torch.rand(3, tree.num_nodes, 4, generator=generator)
    numbers = Uniforms.at_positions(torch.arange(3), torch.arange(3), tree)
    drafts = torch.rand(3, tree.num_draft_tokens, 4, generator=generator)
    with_draft = sample_match.verify_tree(tree, tokens, drafts, target, numbers)
    without = sample_match.verify_tree(tree, tokens, None, target, numbers)
    assert with_draft.nodes.equal(without.nodes)
