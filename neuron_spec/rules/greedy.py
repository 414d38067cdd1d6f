"""Greedy match: keep the longest drafted prefix that the target would have chosen itself.

Stern et al. 2018 (arXiv:1811.03115), section 3; NxDI's fused speculation applies the same rule on
the device (`models/model_base.py`). On a tree: follow the child that equals the target's argmax.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from neuron_spec.rules.matching import match_chain, match_tree
from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.rules.verdict import TreeVerdict, Verdict, check_shapes
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
    return match_chain(draft_tokens, best_ids(target_logits))


def follow(
    tree: Tree, draft_tokens: Sequence[int], best: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """The rule for one row whose ids the host knows: a few comparisons, no tensors.

    Args:
        draft_tokens: [nodes - 1] ids of the tree, which may be a chain, or `NO_PROPOSAL`.
        best: [nodes] the target's argmax at every node.

    Returns:
        The accepted nodes, the root first, and the target's own token after the last of them; of
        siblings with the same token the first is taken.
    """
    route, children = [ROOT], tree.children
    while True:
        wanted = best[route[-1]]
        child = next((c for c in children[route[-1]] if draft_tokens[c - 1] == wanted), None)
        if child is None:
            return tuple(route), wanted
        route.append(child)


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
    return match_tree(tree, draft_tokens, best_ids(target_probs))
