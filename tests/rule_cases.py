"""Shapes of trees, and random batches of proposals for them, for tests of the rules."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from neuron_spec.rules import Uniforms
from neuron_spec.trees import Tree

TREES = {
    "chain": Tree.chain(3),
    "root": Tree.chain(0),
    "fork": Tree.from_paths([[0], [1]]),
    "comb": Tree.from_paths([[0], [1], [0, 0], [0, 1]]),
    "skew": Tree.from_paths([[0], [1], [1, 0], [1, 1], [1, 0, 0]]),
    "wide": Tree.from_paths([[0], [1], [2], [0, 0], [2, 0]]),
}
Case = tuple[Tree, Tensor, Tensor, Tensor, Uniforms]
"""Tree, draft_tokens, draft_probs, target_probs, uniforms."""


def random_case(tree: Tree, *, batch: int, sharpness: float, seed: int) -> Case:
    """Distributions and numbers at random; every fifth place or so without proposal."""
    generator = torch.Generator().manual_seed(seed)
    vocab, k = 4, tree.num_draft_tokens
    target = torch.randn(batch, tree.num_nodes, vocab, generator=generator)
    drafts = torch.randn(batch, k, vocab, generator=generator)
    uniforms = Uniforms(
        torch.rand(batch, k, generator=generator),
        torch.rand(batch, tree.max_depth + 1, generator=generator),
    )
    return (
        tree,
        torch.randint(-1, vocab, (batch, k), generator=generator),
        (sharpness * drafts).softmax(dim=-1),
        (sharpness * target).softmax(dim=-1),
        uniforms,
    )


@st.composite
def batches(draw: st.DrawFn, tree: Tree | None = None) -> Case:
    """A batch of random proposals and numbers for a tree."""
    return random_case(
        tree or TREES[draw(st.sampled_from(sorted(TREES)))],
        batch=draw(st.integers(1, 4)),
        sharpness=draw(st.sampled_from([0.0, 1.0, 4.0])),
        seed=draw(st.integers(0, 2**31)),
    )
