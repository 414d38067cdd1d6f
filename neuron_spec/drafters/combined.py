"""Lookup first, a draft for the rest.

Where a text repeats itself a lookup proposes more tokens than a draft would, at no cost; where it
does not, it proposes nothing. ArcticInference joins suffix decoding and a draft in the same way
(`arctic_inference/vllm/model_runner.py`; SuffixDecoding, arXiv:2411.04975, section 4.3).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.drafters.base import NO_PROPOSAL, Choose, Drafter, Proposal, choose_best


class CombinedDrafter:
    """Every row takes the lookup's chain where that is long enough, else the draft's.

    Args:
        lookup: proposes without a model.
        draft: proposes chains.
        num_draft_tokens: the longest chain of the draft; the lookup's are as long as asked for.
        shortest: fewer tokens of the lookup's are weak evidence: the draft's are taken instead.
    """

    def __init__(
        self, lookup: Drafter, draft: Drafter, *, num_draft_tokens: int, shortest: int
    ) -> None:
        self._lookup, self._draft = lookup, draft
        self._num_draft_tokens, self._shortest = num_draft_tokens, shortest
        self._running: set[int] = set()

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`."""
        self._running.add(slot)
        self._lookup.begin(slot, tokens, features)
        self._draft.begin(slot, tokens, features)

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        self._lookup.observe(slot, tokens, features)
        self._draft.observe(slot, tokens, features)

    def release(self, slot: int) -> None:
        """See `Drafter.release`."""
        self._running.discard(slot)
        self._lookup.release(slot)
        self._draft.release(slot)

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        """See `Drafter.propose`; the draft does not run where no row needs it."""
        found = self._lookup.propose(num_rows, num_draft_tokens, choose).tokens
        num_found = (found != NO_PROPOSAL).sum(dim=1)
        is_found = num_found >= min(self._shortest, num_draft_tokens)
        if all(is_found[slot] for slot in self._running if slot < num_rows):
            return Proposal(found)
        length = min(num_draft_tokens, self._num_draft_tokens)
        drafted = self._draft.propose(num_rows, length, choose)
        found, is_found = found.to(drafted.tokens.device), is_found.to(drafted.tokens.device)
        return _joined(found, is_found, drafted)


def _joined(found: Tensor, is_found: Tensor, drafted: Proposal) -> Proposal:
    """Rows of one or the other proposal; what was looked up was drawn from itself alone."""
    width = max(found.shape[1], drafted.tokens.shape[1])
    found, tokens = (
        F.pad(part, (0, width - part.shape[1]), value=NO_PROPOSAL)
        for part in (found, drafted.tokens)
    )
    tokens = torch.where(is_found[:, None], found, tokens)
    if drafted.probs is None:
        return Proposal(tokens)
    probs = F.pad(drafted.probs, (0, 0, 0, width - drafted.probs.shape[1]))
    certain = F.one_hot(found.clamp(min=0), probs.shape[2]).to(probs.dtype)
    return Proposal(tokens, probs=torch.where(is_found[:, None, None], certain, probs))
