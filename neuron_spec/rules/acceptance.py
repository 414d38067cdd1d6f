"""The arithmetic of rejection sampling, alone: what is accepted, and what is drawn instead.

Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1 and appendix A.1; Chen et al. 2023
(arXiv:2302.01318), Algorithm 2. All functions work on the last dimension, [..., vocab], in float32
or wider.
"""

from __future__ import annotations

import torch
from torch import Tensor


def acceptance_probability(
    target_prob: Tensor, draft_prob: Tensor, *, lenience: float = 1.0
) -> Tensor:
    """min(1, target_prob / (lenience · draft_prob)) of drafted tokens, [...].

    A draft probability of zero has no quotient: such a token is accepted iff the target gives it
    any probability. The rules never ask that, see `as_drawn`.
    """
    # The quotient is taken and not u · draft_prob compared with target_prob: division rounds
    # correctly, so that draft = target gives exactly 1.
    quotient = target_prob / (lenience * draft_prob)
    possible = (target_prob > 0).to(quotient.dtype)
    return torch.where(draft_prob > 0, quotient.clamp(max=1.0), possible)


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """norm(max(0, target_probs - draft_probs)), [..., vocab]: what to draw from on rejection.

    Where nothing is left, the two are equal up to rounding and a rejection can only be rounding
    itself: the target's distribution stands in. (NxDI 0.9 makes that row uniform over its top k.)
    """
    excess = (target_probs - draft_probs).clamp(min=0)
    mass = excess.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, excess / mass, target_probs)


def as_drawn(draft_tokens: Tensor, draft_probs: Tensor | None, vocab: int) -> Tensor:
    """The distribution that each token was drawn from, as far as the token itself agrees.

    None is the deterministic draft: one-hot. So is a token that its stated distribution cannot
    give (rounded to zero in a half type, or drawn from something else): whatever led to it, taking
    it as given and accepting it with the target's probability keeps the target's distribution,
    where an endless quotient would accept it always.

    Args:
        draft_tokens: [...] ids; `NO_PROPOSAL` gives any distribution.
        draft_probs: [..., vocab] or None.

    Returns:
        [..., vocab] float32, or float64 where `draft_probs` is.
    """
    if draft_probs is None:
        return _one_hot(draft_tokens, vocab)
    probs = widened(draft_probs)
    impossible = at_tokens(probs, draft_tokens) <= 0
    return torch.where(impossible[..., None], _one_hot(draft_tokens, vocab), probs)


def probability_as_drawn(draft_tokens: Tensor, draft_probs: Tensor | None) -> Tensor:
    """The probability of each token in `as_drawn`, [...], without making the distributions."""
    if draft_probs is None:
        return torch.ones_like(draft_tokens, dtype=torch.float32)
    probs = at_tokens(widened(draft_probs), draft_tokens)
    return torch.where(probs > 0, probs, 1.0)


def without(draft_probs: Tensor, drawn: Tensor) -> Tensor:
    """`draft_probs` for the next draw without replacement: zero where `drawn`, renormalised.

    Args:
        draft_probs: [..., vocab].
        drawn: [..., vocab] bool.

    Returns:
        [..., vocab]; all zero when nothing is left to draw.
    """
    left = draft_probs.masked_fill(drawn, 0)
    mass = left.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, left / mass, left)


def at_tokens(probs: Tensor, tokens: Tensor) -> Tensor:
    """[...] the probability of each token; `NO_PROPOSAL` reads id 0."""
    return probs.gather(-1, tokens.clamp(min=0)[..., None]).squeeze(-1)


def widened(probs: Tensor) -> Tensor:
    """Half types as float32; float32 and float64 as they are."""
    return probs.to(torch.promote_types(probs.dtype, torch.float32))


def _one_hot(tokens: Tensor, vocab: int) -> Tensor:
    zeros = torch.zeros(*tokens.shape, vocab, device=tokens.device)
    return zeros.scatter(-1, tokens.clamp(min=0)[..., None], 1.0)
