"""Putting drafted tokens on trial: rejection sampling with a lenience, on chains and on trees.

`rejection` is the lenience 1. What is accepted and what is drawn instead is in `acceptance.py`;
here is only who is judged when, for a whole batch at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neuron_spec.rules.acceptance import (
    acceptance_probability,
    as_drawn,
    at_tokens,
    probability_as_drawn,
    residual,
    widened,
    without,
)
from neuron_spec.rules.matching import children_table, tokens_of, tree_verdict
from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.rules.verdict import (
    NO_NODE,
    TreeVerdict,
    Verdict,
    check_shapes,
    check_uniforms,
)
from neuron_spec.sampling import sample
from neuron_spec.trees import ROOT, Tree

Siblings = Literal["with-replacement", "without-replacement"]
"""How the children of one node were drawn; see `rejection.py`."""


def judge_chain(
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
    *,
    lenience: float,
) -> Verdict:
    """Accept the longest prefix that stands its trial; see `ChainRule` for the shapes."""
    num_drafts = draft_tokens.shape[1]
    tree = Tree.chain(num_drafts)
    check_shapes(tree, draft_tokens, draft_probs, target_probs)
    check_uniforms(tree, draft_tokens, uniforms)
    target = widened(target_probs)
    probability = acceptance_probability(
        at_tokens(target[:, :num_drafts], draft_tokens),
        probability_as_drawn(draft_tokens, draft_probs),
        lenience=lenience,
    )
    accepted = (draft_tokens >= 0) & (uniforms.accept < probability)  # [batch, k]
    num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)  # [batch]
    last = _row(target, num_accepted)  # [batch, vocab]
    if num_drafts:
        first_left = num_accepted.clamp(max=num_drafts - 1)
        token = draft_tokens.gather(1, first_left[:, None]).squeeze(1)
        drawn_from = None if draft_probs is None else _row(draft_probs, first_left)
        # Where nothing was proposed nothing was refused: the token comes from the target as it is.
        refused = (num_accepted < num_drafts) & (token >= 0)
        rest = residual(last, as_drawn(token, drawn_from, last.shape[-1]))
        last = torch.where(refused[:, None], rest, last)
    return Verdict(num_accepted, _sample_at(last, uniforms, num_accepted))


def judge_tree(
    tree: Tree,
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Uniforms,
    *,
    lenience: float,
    siblings: Siblings | None,
) -> TreeVerdict:
    """From the root on, try the children in turn and go to the first accepted; see `TreeRule`.

    Raises:
        ValueError: the shapes do not belong together, or `siblings` is not said where it matters.
    """
    check_shapes(tree, draft_tokens, draft_probs, target_probs)
    check_uniforms(tree, draft_tokens, uniforms)
    if siblings is None and draft_probs is not None and tree.max_children > 1:
        raise ValueError(
            "siblings: say whether the children of a node were drawn 'with-replacement' or "
            "'without-replacement'; their distributions differ"
        )
    children = children_table(tree, draft_tokens.device)
    trial = _Trial(children, draft_tokens, draft_probs, uniforms, lenience, siblings)
    target = widened(target_probs)
    current = draft_tokens.new_full((len(draft_tokens),), ROOT, dtype=torch.int64)  # [batch]
    route, running = [current], torch.ones_like(current, dtype=torch.bool)
    last = _row(target, current)  # [batch, vocab]: what the next token is drawn from
    for _ in range(tree.max_depth):
        child, rest = trial.of_children(current, last, running)
        running = child != NO_NODE
        current = torch.where(running, child, current)
        last = torch.where(running[:, None], _row(target, current), rest)
        route.append(child)
    verdict = tree_verdict(route, current)
    return TreeVerdict(
        verdict.num_accepted, _sample_at(last, uniforms, verdict.num_accepted), verdict.nodes
    )


@dataclass(frozen=True)
class _Trial:
    """What stays the same from node to node of one step."""

    children: Tensor  # [nodes, max_children], see `children_table`
    draft_tokens: Tensor  # [batch, nodes - 1]
    draft_probs: Tensor | None  # [batch, nodes - 1, vocab]
    uniforms: Uniforms
    lenience: float
    siblings: Siblings | None

    def of_children(
        self, current: Tensor, target_probs: Tensor, running: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Try the children of one node a row, the first accepted one ends the row's trial.

        Args:
            current: [batch] the node.
            target_probs: [batch, vocab] the target's distribution after it.
            running: [batch] bool; other rows keep what they have.

        Returns:
            [batch] the accepted child or `NO_NODE`, and [batch, vocab] what the target's
            distribution has become by the rejections.
        """
        children = self.children[current]  # [batch, max_children]
        tokens = tokens_of(self.draft_tokens, children)
        chosen = torch.full_like(current, NO_NODE)
        tried = torch.zeros_like(target_probs, dtype=torch.bool)  # [batch, vocab]
        for child, token in zip(children.unbind(1), tokens.unbind(1), strict=True):
            judged = running & (chosen == NO_NODE) & (child != NO_NODE) & (token >= 0)
            drawn_from = self._drawn_from(child, token, tried, target_probs.shape[-1])
            probability = acceptance_probability(
                at_tokens(target_probs, token), at_tokens(drawn_from, token), lenience=self.lenience
            )
            accepted = judged & (self._accept_uniforms(child) < probability)
            refused = judged & ~accepted
            chosen = torch.where(accepted, child, chosen)
            target_probs = torch.where(
                refused[:, None], residual(target_probs, drawn_from), target_probs
            )
            ids = torch.arange(tried.shape[1], device=token.device)
            tried = tried | (refused[:, None] & (ids == token[:, None]))
        return chosen, target_probs

    def _drawn_from(self, child: Tensor, token: Tensor, tried: Tensor, vocab: int) -> Tensor:
        """[batch, vocab] the distribution of a child, given the siblings before it."""
        if self.draft_probs is None:
            return as_drawn(token, None, vocab)
        stated = widened(_row(self.draft_probs, (child - 1).clamp(min=0)))
        if self.siblings == "without-replacement":
            stated = without(stated, tried)
        return as_drawn(token, stated, vocab)

    def _accept_uniforms(self, child: Tensor) -> Tensor:
        return self.uniforms.accept.gather(1, (child - 1).clamp(min=0)[:, None]).squeeze(1)


def _row(probs: Tensor, rows: Tensor) -> Tensor:
    """[batch, vocab] one row of [batch, n, vocab] for each of [batch]."""
    return probs[torch.arange(len(rows), device=rows.device), rows]


def _sample_at(probs: Tensor, uniforms: Uniforms, num_accepted: Tensor) -> Tensor:
    """[batch] tokens drawn with the number of the place that follows the accepted ones."""
    return sample(probs, uniforms.sample.gather(1, num_accepted[:, None]).squeeze(1))
