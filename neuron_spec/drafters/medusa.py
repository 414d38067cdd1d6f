"""Medusa drafting: every head proposes its best tokens, all from one state of the target.

Source: arXiv:2401.10774; FasterDecoding/Medusa `medusa/model/medusa_model.py`. From the state of
position t the target's LM head gives token t + 1, which is committed by then, and head i gives
token t + 2 + i.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from neuron_spec.drafters.base import NO_PROPOSAL, Choose, Proposal, choose_best
from neuron_spec.trees import Tree

HeadLogits = Callable[[Tensor, int], Tensor]
"""(features [rows, hidden], number of heads n) -> logits [rows, n, vocab] of heads 0 … n - 1."""


class MedusaDrafter:
    """Keeps one feature a sequence: the target's state one position before its last token."""

    def __init__(
        self, head_logits: HeadLogits, *, num_heads: int, tree: Tree | None = None
    ) -> None:
        self._head_logits, self._num_heads, self._tree = head_logits, num_heads, tree
        self._features: dict[int, Tensor] = {}

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`."""
        self._features[slot] = features[-1]

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        self._features[slot] = features[-1]

    def release(self, slot: int) -> None:
        """See `Drafter.release`."""
        self._features.pop(slot, None)

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        """See `Drafter.propose`: a chain of every head's best token, no longer than there are
        heads, or the tree, in which the token of path (a, b, …) is the a-th best of head 0, the
        b-th best of head 1, …"""
        slots = [slot for slot in range(num_rows) if slot in self._features]
        features = torch.stack([self._features[slot] for slot in slots])  # [slots, hidden]
        if self._tree is None:
            width = min(num_draft_tokens, self._num_heads)
            best = self._head_logits(features, width).argmax(dim=-1)  # [slots, width]
            return Proposal(_rows(best, slots, num_rows))
        tree = self._tree.first(num_draft_tokens)
        nodes = range(1, tree.num_nodes)
        num_best = 1 + max(tree.ranks[node] for node in nodes)
        depth = max(tree.depths[node] for node in nodes)
        top = self._head_logits(features, depth).topk(num_best, dim=-1).indices
        picked = [top[:, tree.depths[node] - 1, tree.ranks[node]] for node in nodes]
        parents = torch.tensor(tree.parents[1:], device=top.device).expand(num_rows, -1)
        return Proposal(_rows(torch.stack(picked, dim=1), slots, num_rows), parents=parents)


def _rows(tokens: Tensor, slots: list[int], num_rows: int) -> Tensor:
    """[slots, n] as [num_rows, n]; free rows propose nothing."""
    rows = tokens.new_full((num_rows, tokens.shape[1]), NO_PROPOSAL)
    rows[slots] = tokens
    return rows
