"""Rejection sampling with lenience l: more is accepted, the distribution is no longer the target's.

Leviathan et al. 2023 (arXiv:2211.17192), appendix A.5: the draft's probability is multiplied by l
before it is compared with the target's, so that a drafted x is accepted with
min(1, target / (l · draft)). Only the comparison changes; on rejection the token is drawn from
norm(max(0, target - draft)) as in Algorithm 1. l = 1 is `rejection`.

The paper's bound holds: no token comes out with more than target / l. With t, d for the two
probabilities of a token, min(d, t / l) is what acceptance gives it; rejection adds at most
max(0, t - d), because rejections are no more frequent than with l = 1. Where d < t that makes at
most t, elsewhere at most t / l. The same holds for the children of a tree node, one after another.
There is no bound from below. At temperature 0 the target is one-hot and lenience does nothing; the
paper's variant for that case (accept within l of the maximum) is not implemented.
"""

from __future__ import annotations

from torch import Tensor

from neuron_spec.rules.trials import Siblings, judge_chain, judge_tree
from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.rules.verdict import TreeVerdict, Verdict
from neuron_spec.trees import Tree


def verify(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
    *,
    lenience: float,
) -> Verdict:
    """Judge chains, see `ChainRule`.

    Args:
        lenience: l, above 0 and at most 1.

    Raises:
        ValueError: also where `lenience` is out of range.
    """
    check_lenience(lenience)
    return judge_chain(draft_tokens, draft_probs, target_probs, uniforms, lenience=lenience)


def verify_tree(
    tree: Tree,
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
    *,
    lenience: float,
    siblings: Siblings | None = None,
) -> TreeVerdict:
    """Judge trees, see `TreeRule`; `siblings` as in `rejection.py`."""
    check_lenience(lenience)
    return judge_tree(
        tree,
        draft_tokens,
        draft_probs,
        target_probs,
        uniforms,
        lenience=lenience,
        siblings=siblings,
    )


def check_lenience(lenience: float) -> None:
    """Refuse a lenience that bounds nothing.

    Raises:
        ValueError: not above 0 and at most 1.
    """
    if not 0 < lenience <= 1:
        raise ValueError(f"lenience: expected above 0 and at most 1, found {lenience}")
