"""What every verification rule returns, and how every rule is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.trees import Tree

NO_PROPOSAL = -1
"""A drafted id that stands for "nothing drafted here": never accepted, and nothing is rejected."""

NO_NODE = -1
"""Fills the places of an accepted route that ends early."""


@dataclass(frozen=True)
class Verdict:
    """How much of a drafted chain is kept, row by row.

    Attributes:
        num_accepted: [batch] int64, length of the accepted prefix, 0 … k.
        next_tokens: [batch] int64, the target's own token after that prefix: the correction at the
            first mismatch, or the bonus token when all k were accepted.
    """

    num_accepted: Tensor
    next_tokens: Tensor


@dataclass(frozen=True)
class TreeVerdict(Verdict):
    """How much of a drafted tree is kept, row by row.

    Attributes:
        nodes: [batch, max_depth + 1] int64, the route of accepted nodes from the root (always 0,
            not counted in `num_accepted`), then `NO_NODE`.
    """

    nodes: Tensor


class ChainRule(Protocol):
    """A rule for chains; parameters of its own are bound beforehand with `functools.partial`."""

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Uniforms,
        /,
    ) -> Verdict:
        """Judge a batch of chains.

        Args:
            draft_tokens: [batch, k] int64 ids below vocab, or `NO_PROPOSAL`; k may be 0.
            draft_probs: [batch, k, vocab] the distribution that each token was drawn from; None
                for a deterministic draft, whose distribution is one-hot.
            target_probs: [batch, k + 1, vocab] probabilities; row i scores the token after the
                first i drafted ones. What the user's sampling parameters make of the logits is
                already in them: the rule preserves (or not) this distribution and no other.
            uniforms: the random numbers; rules that need none ignore them.

        Raises:
            ValueError: the shapes do not belong together, or a row has no positive probability.
        """


class TreeRule(Protocol):
    """A rule for trees; parameters of its own are bound beforehand with `functools.partial`."""

    def __call__(
        self,
        tree: Tree,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Uniforms,
        /,
    ) -> TreeVerdict:
        """Judge a batch of trees of one shape; for `Tree.chain(k)` all is as in `ChainRule`.

        Args:
            draft_tokens: [batch, nodes - 1]; column i is node i + 1.
            draft_probs: [batch, nodes - 1, vocab], row by row what each token was drawn from.
            target_probs: [batch, nodes, vocab]; row i scores the token after node i.
            uniforms: the random numbers; rules that need none ignore them.
        """


def check_shapes(
    tree: Tree, draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor
) -> None:
    """Refuse tensors that do not belong together.

    Raises:
        ValueError: with the shapes found and expected.
    """
    batch, num_drafts = draft_tokens.shape
    vocab = target_probs.shape[-1]
    if num_drafts != tree.num_draft_tokens:
        raise ValueError(
            f"draft_tokens {tuple(draft_tokens.shape)}: expected "
            f"[batch, {tree.num_draft_tokens}] for this tree"
        )
    if target_probs.shape != (batch, num_drafts + 1, vocab):
        raise ValueError(
            f"target_probs {tuple(target_probs.shape)} does not score draft_tokens "
            f"{tuple(draft_tokens.shape)}: expected [{batch}, {num_drafts + 1}, vocab]"
        )
    if draft_probs is not None and draft_probs.shape != (batch, num_drafts, vocab):
        raise ValueError(
            f"draft_probs {tuple(draft_probs.shape)} does not belong to draft_tokens "
            f"{tuple(draft_tokens.shape)}: expected [{batch}, {num_drafts}, {vocab}]"
        )


def check_uniforms(tree: Tree, draft_tokens: Tensor, uniforms: Uniforms) -> None:
    """Refuse too few or too many random numbers.

    Raises:
        ValueError: with the shapes found and expected.
    """
    batch, num_drafts = draft_tokens.shape
    expected = ((batch, num_drafts), (batch, tree.max_depth + 1))
    found = (tuple(uniforms.accept.shape), tuple(uniforms.sample.shape))
    if found != expected:
        raise ValueError(f"uniforms accept, sample have shapes {found}: expected {expected}")
