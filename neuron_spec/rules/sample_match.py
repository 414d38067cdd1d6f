"""Sample match: the target's token is sampled everywhere; a draft is kept iff it equals the sample.

The same law as rejection sampling with a deterministic draft: a drafted x is kept with the target's
probability of x, and otherwise the target's token given that it is not x is drawn. SpecInfer calls
it naive sampling (arXiv:2305.09781, section 4.3); it is what a device that samples for us allows.

Every token is a function of what stands before it and of the number drawn for its position. With
numbers tied to positions (`Uniforms.at_positions`) the output is the same, token by token, with any
draft and with none: drafter-invariant speculation in the words of arXiv:2408.07978.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_spec.rules.matching import match_chain, match_tree
from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.rules.verdict import TreeVerdict, Verdict, check_shapes, check_uniforms
from neuron_spec.sampling import sample
from neuron_spec.trees import Tree


def verify(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Uniforms
) -> Verdict:
    """Judge chains, see `ChainRule`; `draft_probs` and `uniforms.accept` do not count."""
    tree = Tree.chain(draft_tokens.shape[1])
    check_shapes(tree, draft_tokens, None, target_probs)
    check_uniforms(tree, draft_tokens, uniforms)
    return match_chain(draft_tokens, sample(target_probs, uniforms.sample))


def verify_tree(
    tree: Tree,
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
) -> TreeVerdict:
    """Judge trees, see `TreeRule`: nodes of one depth share the number of their position."""
    check_shapes(tree, draft_tokens, None, target_probs)
    check_uniforms(tree, draft_tokens, uniforms)
    depths = torch.tensor(tree.depths, device=draft_tokens.device)
    return match_tree(tree, draft_tokens, sample(target_probs, uniforms.sample[:, depths]))
