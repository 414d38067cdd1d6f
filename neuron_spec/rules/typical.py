"""Typical acceptance: keep drafted tokens that are not unlikely for how open the target is.

Medusa (arXiv:2401.10774), section 2.3.1: a drafted x is accepted if the target gives it more than
min(epsilon, delta · exp(-H)), H being the entropy in nats of the target's distribution at that
place. The longest accepted prefix wins; among equally long ones, as in Medusa's code, the one that
the target finds likeliest (FasterDecoding/Medusa `medusa/model/utils.py`, `evaluate_posterior`,
whose defaults are taken here; delta = √epsilon).

The paper takes the first token of a step greedily and without a test, so that a step always gives
one. Here that token is the `next_tokens` of the step before, committed as the root: it is sampled
from the target's distribution, or its argmax with `greedy_next`, as in the paper. At temperature 0,
target one-hot, both are the greedy rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_spec.rules.acceptance import at_tokens, widened
from neuron_spec.rules.matching import tree_verdict
from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.rules.verdict import NO_NODE, TreeVerdict, Verdict, check_shapes, check_uniforms
from neuron_spec.sampling import sample
from neuron_spec.trees import Tree

EPSILON = 0.09
DELTA = 0.3


def threshold(target_probs: Tensor, *, epsilon: float = EPSILON, delta: float = DELTA) -> Tensor:
    """min(epsilon, delta · exp(-entropy)) of distributions [..., vocab], [...]."""
    entropy = torch.special.entr(widened(target_probs)).sum(dim=-1)  # 0 · log 0 is 0
    return (delta * torch.exp(-entropy)).clamp(max=epsilon)


def verify(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
    *,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    greedy_next: bool = False,
) -> Verdict:
    """Judge chains, see `ChainRule`; `draft_probs` and `uniforms.accept` do not count."""
    verdict = verify_tree(
        Tree.chain(draft_tokens.shape[1]),
        draft_tokens,
        draft_probs,
        target_probs,
        uniforms,
        epsilon=epsilon,
        delta=delta,
        greedy_next=greedy_next,
    )
    return Verdict(verdict.num_accepted, verdict.next_tokens)


def verify_tree(
    tree: Tree,
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
    *,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    greedy_next: bool = False,
) -> TreeVerdict:
    """Judge trees, see `TreeRule`; `draft_probs` and `uniforms.accept` do not count.

    Args:
        epsilon: accepted whatever the entropy: a token with more than this probability.
        delta: the factor of exp(-entropy).
        greedy_next: take the target's argmax as next token instead of a sample.

    Raises:
        ValueError: also where epsilon or delta is not above 0 (and epsilon below 1).
    """
    _check_thresholds(epsilon, delta)
    check_shapes(tree, draft_tokens, None, target_probs)
    check_uniforms(tree, draft_tokens, uniforms)
    target = widened(target_probs)
    best, route = _best_route(tree, *_scores(tree, draft_tokens, target, epsilon, delta))
    last = target[torch.arange(len(best), device=best.device), best]  # [batch, vocab]
    verdict = tree_verdict(route, last.argmax(dim=-1))
    if greedy_next:
        return verdict
    places = verdict.num_accepted[:, None]
    next_tokens = sample(last, uniforms.sample.gather(1, places).squeeze(1))
    return TreeVerdict(verdict.num_accepted, next_tokens, verdict.nodes)


def _scores(
    tree: Tree, draft_tokens: Tensor, target_probs: Tensor, epsilon: float, delta: float
) -> tuple[Tensor, Tensor]:
    """Whether every drafted node is accepted, and its log-probability; both [batch, nodes - 1]."""
    parents = torch.tensor(tree.parents[1:], dtype=torch.int64, device=draft_tokens.device)
    at_parents = target_probs[:, parents]  # [batch, nodes - 1, vocab]
    probs = at_tokens(at_parents, draft_tokens)
    above = probs > threshold(at_parents, epsilon=epsilon, delta=delta)
    return above & (draft_tokens >= 0), probs.log()


def _best_route(tree: Tree, accepted: Tensor, log_probs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The last node of the longest accepted route, [batch], and the route by depth."""
    device = accepted.device
    sees = torch.tensor(tree.attention_mask, device=device)[:, 1:]  # [nodes, nodes - 1]
    depths = torch.tensor(tree.depths, device=device)
    kept = (accepted[:, None, :] | ~sees).all(dim=-1)  # [batch, nodes]: all on the route accepted
    length = torch.where(kept, depths, -1)
    likelihood = torch.where(sees & accepted[:, None, :], log_probs[:, None, :], 0).sum(dim=-1)
    longest = length == length.max(dim=1, keepdim=True).values
    best = likelihood.masked_fill(~longest, -torch.inf).argmax(dim=1)
    routes = [
        [*tree.route(node), *[NO_NODE] * (tree.max_depth - depth)]
        for node, depth in enumerate(tree.depths)
    ]
    table = torch.tensor(routes, dtype=torch.int64, device=device)  # [nodes, max_depth + 1]
    return best, list(table[best].unbind(dim=1))


def _check_thresholds(epsilon: float, delta: float) -> None:
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon: expected between 0 and 1, found {epsilon}")
    if not delta > 0:
        raise ValueError(f"delta: expected above 0, found {delta}")
