"""What NxDI's fused graph accepts: pure functions of tokens and probabilities.

Source: `models/model_base.py`, `NeuronFusedSpecModel`: `_adjust_target_probs`,
`_speculative_mask`, `_speculative_token_selection`, `_tkg_postprocessor`. The draft is always
greedy and its probability 1 in there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

NO_TOKEN = -1
"""Fills the rejected places of a step's output."""
_NOTHING = 1e-30


@dataclass(frozen=True)
class Accepted:
    """A step's outputs.

    Attributes:
        tokens: [rows, n] ids, then `NO_TOKEN`.
        next_tokens: [rows] the last token of each row.
        next_positions: [rows] its position.
    """

    tokens: Tensor
    next_tokens: Tensor
    next_positions: Tensor


def postprocessed(drafts: Tensor, target_tokens: Tensor, positions: Tensor) -> Accepted:
    """The leading target tokens, as many as drafts equal them, and one more.

    The count is made here from the tokens alone, in sampling too: whatever the accept test said, a
    token that equals its draft is followed by the next one.

    Args:
        drafts: [rows, n - 1] what was verified.
        target_tokens: [rows, n] the target's choices, or what the accept test made of them.
        positions: [rows] of the step's first input.
    """
    num_accepted = count_matches(drafts, target_tokens[:, :-1])
    last = num_accepted[:, None]
    is_kept = torch.arange(target_tokens.shape[1]) <= last
    tokens = torch.where(is_kept, target_tokens, NO_TOKEN)
    return Accepted(tokens, target_tokens.gather(1, last).squeeze(1), positions + num_accepted + 1)


def count_matches(drafts: Tensor, target_tokens: Tensor) -> Tensor:
    """How many equal each other before the first that do not: [..., n] -> [...]."""
    return (drafts == target_tokens).long().cumprod(dim=-1).sum(dim=-1)


def adjusted_probs(drafts: Tensor, ids: Tensor, probs: Tensor) -> Tensor:
    """The residual distributions: what the draft's probability 1 leaves of the target's.

    A row of which nothing is left becomes 1 everywhere, uniform over the list, in place of the
    target's own distribution.

    Args:
        drafts: [rows, k].
        ids, probs: [rows, k + 1, n] the sampler's list; the last row, of the bonus token, stays.
    """
    is_draft = ids[:, :-1] == drafts[..., None]
    excess = (probs[:, :-1] - is_draft.to(probs)).clamp(min=0)
    mass = excess.sum(dim=2, keepdim=True)
    is_empty = mass < _NOTHING
    residual = torch.where(is_empty, 1.0, excess / torch.where(is_empty, 1.0, mass))
    return torch.cat([residual, probs[:, -1:]], dim=1)


def draft_probs(drafts: Tensor, ids: Tensor, probs: Tensor) -> Tensor:
    """[rows, k] the target's probability of each draft; 0 for one that is not on its list."""
    is_draft = ids[:, : drafts.shape[1]] == drafts[..., None]
    return torch.where(is_draft, probs[:, : drafts.shape[1]], 0.0).sum(dim=2)


def num_accepted_by_test(probs: Tensor, uniforms: Tensor) -> Tensor:
    """[rows] how many leading drafts pass `uniform < probability`, both [rows, k].

    One test a draft, strict: a probability of 1 fails only against 1 itself.
    """
    return (uniforms < probs.clamp(max=1)).long().cumprod(dim=1).sum(dim=1)


def selected(drafts: Tensor, resampled: Tensor, num_accepted: Tensor, pad_token_id: int) -> Tensor:
    """[rows, k + 1] the accepted drafts, the resampled token after them, then padding.

    The padding is a token id, and `postprocessed` cannot tell it from one: where the resampled
    token equals the rejected draft, a padding token is emitted.
    """
    place = torch.arange(resampled.shape[1])
    last = num_accepted[:, None]
    kept = torch.where(place < last, pad(drafts, (0, 1)), resampled)
    return torch.where(place <= last, kept, pad_token_id)
