"""A tree in one pass computes what its branches compute one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import Target
from neuron_spec.drafters import Branches

PROMPTS = ([5, 9, 17, 200, 31], [40, 41, 42])
LENGTH = 96


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_target(tmp_path_factory.mktemp("target"))


def load(directory: Path, num_slots: int = 2) -> Target:
    return Target(directory, Placement(num_slots, LENGTH, torch.float32, torch.device("cpu")))


def ancestors(parents: list[int], node: int) -> list[int]:
    """From the root to the node itself."""
    path = [node]
    while node:
        node = parents[node]
        path.append(node)
    return path[::-1]


def branches_of(trees: list[list[int]], origins: list[int], first: int = 0) -> Branches:
    """Nodes `first` … of every row's tree, all rows of the same size."""
    size = len(trees[0])
    mask = torch.zeros(len(trees), size - first, size, dtype=torch.bool)
    depths = torch.zeros(len(trees), size - first, dtype=torch.long)
    for row, parents in enumerate(trees):
        for node in range(first, size):
            path = ancestors(parents, node)
            mask[row, node - first, path] = True
            depths[row, node - first] = len(path) - 1
    return Branches(origins, depths, mask)


TREES = st.integers(2, 9).flatmap(
    lambda size: st.lists(
        st.tuples(*[st.integers(0, max(node - 1, 0)) for node in range(size)]),
        min_size=2,
        max_size=2,
    )
)


@settings(max_examples=30, deadline=None)
@given(trees=TREES, seed=st.integers(0, 1000))
def test_every_node_sees_its_ancestors_alone(
    directory: Path, trees: list[tuple[int, ...]], seed: int
) -> None:
    parents = [[0, *tree[1:]] for tree in trees]
    size = len(parents[0])
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randint(3, 259, (2, size), generator=generator)
    together = load(directory)
    for slot, prompt in enumerate(PROMPTS):
        together.hidden(torch.tensor([prompt]), [0], slot)
    origins = [len(prompt) for prompt in PROMPTS]
    found, _ = together.hidden(nodes, origins, 0, branches_of(parents, origins))
    for slot, prompt in enumerate(PROMPTS):
        for node in range(size):
            path = ancestors(parents[slot], node)
            expected = alone(directory, [*prompt, *nodes[slot, path].tolist()])
            torch.testing.assert_close(found[slot, node], expected[-1], atol=2e-5, rtol=1e-4)


def alone(directory: Path, tokens: list[int]) -> Tensor:
    return load(directory, 1).hidden(torch.tensor([tokens]), [0])[0][0]


def test_levels_may_come_one_after_the_other(directory: Path) -> None:
    """As a drafter grows its tree: later nodes see the entries that earlier passes left."""
    parents = [0, 0, 0, 1, 1, 2, 3]
    nodes = torch.tensor([[7, 8, 9, 10, 11, 12, 13]])
    origin = len(PROMPTS[0])
    whole, stepwise = load(directory, 1), load(directory, 1)
    for target in (whole, stepwise):
        target.hidden(torch.tensor([PROMPTS[0]]), [0])
    expected, _ = whole.hidden(nodes, [origin], 0, branches_of([parents], [origin]))
    pieces = []
    for first, end in ((0, 1), (1, 3), (3, 6), (6, 7)):
        branches = branches_of([parents[:end]], [origin], first)
        pieces.append(stepwise.hidden(nodes[:, first:end], [origin + first], 0, branches)[0])
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("path", [[0], [0, 2], [0, 2, 5], [0, 1, 3, 6]])
def test_the_kept_branch_is_a_plain_sequence(directory: Path, path: list[int]) -> None:
    parents = [0, 0, 0, 1, 1, 2, 3]
    nodes = torch.tensor([[7, 8, 9, 10, 11, 12, 13]])
    target, origin = load(directory, 1), len(PROMPTS[0])
    target.hidden(torch.tensor([PROMPTS[0]]), [0])
    target.hidden(nodes, [origin], 0, branches_of([parents], [origin]))
    target.keep(0, origin, path)
    found, _ = target.hidden(torch.tensor([[99, 100]]), [origin + len(path)])
    kept = [*PROMPTS[0], *nodes[0, path].tolist()]
    expected = alone(directory, [*kept, 99, 100])
    torch.testing.assert_close(found[0], expected[-2:], atol=2e-5, rtol=1e-4)
