"""Modified rejection sampling: the output has the target's distribution, whatever the draft.

Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1; Chen et al. 2023 (arXiv:2302.01318),
Algorithm 2. A drafted x is accepted with min(1, target / draft); on rejection the token is drawn
from norm(max(0, target - draft)); after a fully accepted draft from the target's next row.

On a tree the children of a node are tried in turn; each rejection turns the target's distribution
into its residual, by which the next child is judged (SpecInfer, arXiv:2305.09781, section 4.3:
multi-step speculative sampling). What that next child was drawn from depends on how siblings were
made, so it has to be said:

    deterministic         `draft_probs` is None: the top k of a draft, as the trees of EAGLE-2
                          (arXiv:2406.16858) and Medusa. Each child is one-hot.
    with-replacement      independent draws, from one distribution or each from its own (several
                          drafts, as in SpecInfer).
    without-replacement   each draw from what the older siblings left over, renormalised, as in
                          Sequoia (arXiv:2402.12374) and EAGLE (arXiv:2401.15077). `draft_probs`
                          still holds, for every child, the distribution before any was drawn.
"""

from __future__ import annotations

from torch import Tensor

from neuron_spec.rules.trials import Siblings, judge_chain, judge_tree
from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.rules.verdict import TreeVerdict, Verdict
from neuron_spec.trees import Tree


def verify(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Uniforms
) -> Verdict:
    """Judge chains, see `ChainRule`."""
    return judge_chain(draft_tokens, draft_probs, target_probs, uniforms, lenience=1.0)


def verify_tree(
    tree: Tree,
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
    *,
    siblings: Siblings | None = None,
) -> TreeVerdict:
    """Judge trees, see `TreeRule`; `siblings` as above, needed where siblings were drawn."""
    return judge_tree(
        tree, draft_tokens, draft_probs, target_probs, uniforms, lenience=1.0, siblings=siblings
    )
