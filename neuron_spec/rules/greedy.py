"""Greedy match: keep the longest drafted prefix that the target would have chosen itself.

Stern et al. 2018 (arXiv:1811.03115), section 3; NxDI's fused speculation applies the same rule on
the device (`models/model_base.py`). On a tree: follow the child that equals the target's argmax.

On a CPU a row is followed position by position, so that the logits behind its first mismatch are
never searched; mostly they are the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from neuron_spec.rules.matching import match_chain, match_tree
from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.rules.verdict import NO_NODE, TreeVerdict, Verdict, check_shapes
from neuron_spec.sampling import best_ids
from neuron_spec.trees import ROOT, Tree


def verify(draft_tokens: Tensor, target_logits: Tensor) -> Verdict:
    """Compare a drafted chain with the target's argmax at every position.

    Args:
        draft_tokens: [batch, k] integer ids; k may be 0.
        target_logits: [batch, k + 1, vocab] any float type; row i scores the token after the first
            i drafted ones.

    Returns:
        The verdict; ties in the logits go to the lowest id, as in `torch.argmax`.

    Raises:
        ValueError: the shapes do not belong together.
    """
    batch, num_draft_tokens = draft_tokens.shape
    if target_logits.ndim != 3 or target_logits.shape[:2] != (batch, num_draft_tokens + 1):
        raise ValueError(
            f"target_logits {tuple(target_logits.shape)} does not score draft_tokens "
            f"{tuple(draft_tokens.shape)}: expected [{batch}, {num_draft_tokens + 1}, vocab]"
        )
    if target_logits.device.type != "cpu":
        return match_chain(draft_tokens, best_ids(target_logits))
    routes, next_tokens = _followed(_chain(num_draft_tokens), draft_tokens, target_logits)
    num_accepted = torch.tensor([len(route) - 1 for route in routes], dtype=torch.int64)
    return Verdict(num_accepted, next_tokens)


def verify_probs(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Uniforms
) -> Verdict:
    """`verify` with the signature of every rule, see `ChainRule`; only two arguments count.

    Logits do as well as probabilities for `target_probs`, and are safer: rounding in a softmax can
    make a tie of two logits that differ.
    """
    return verify(draft_tokens, target_probs)


def verify_tree(
    tree: Tree,
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
) -> TreeVerdict:
    """Follow the target's argmax through the tree, see `TreeRule`; logits do as well."""
    check_shapes(tree, draft_tokens, None, target_probs)
    if target_probs.device.type != "cpu":
        return match_tree(tree, draft_tokens, best_ids(target_probs))
    routes, next_tokens = _followed(tree, draft_tokens, target_probs)
    padded = [[*route, *[NO_NODE] * (tree.max_depth + 1 - len(route))] for route in routes]
    num_accepted = torch.tensor([len(route) - 1 for route in routes], dtype=torch.int64)
    nodes = torch.tensor(padded, dtype=torch.int64).view(len(routes), tree.max_depth + 1)
    return TreeVerdict(num_accepted, next_tokens, nodes)


@lru_cache(maxsize=64)
def _chain(num_draft_tokens: int) -> Tree:
    return Tree.chain(num_draft_tokens)


def _followed(tree: Tree, draft_tokens: Tensor, logits: Tensor) -> tuple[list[list[int]], Tensor]:
    """The accepted nodes of every row, the root first, and the target's own tokens after them."""
    pairs = [_follow(tree, *row) for row in zip(draft_tokens.tolist(), logits, strict=True)]
    next_tokens = torch.tensor([token for _, token in pairs], dtype=torch.int64)
    return [route for route, _ in pairs], next_tokens


def _follow(tree: Tree, drafted: Sequence[int], logits: Tensor) -> tuple[list[int], int]:
    """One row: ids [nodes - 1], logits [nodes, vocab]."""
    route = [ROOT]
    while True:
        best = int(best_ids(logits[route[-1]]))
        child = next((c for c in tree.children[route[-1]] if drafted[c - 1] == best), None)
        if child is None:
            return route, best
        route.append(child)
