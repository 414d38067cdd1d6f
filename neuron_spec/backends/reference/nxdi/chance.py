"""Sampling in NxDI's fused graph: where the random numbers go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuron_spec.backends.reference.nxdi import acceptance, sampler
from neuron_spec.backends.reference.nxdi.graph import SampledStep
from neuron_spec.backends.reference.nxdi.sampler import Draw, Sampling


@dataclass(frozen=True)
class Chance:
    """How tokens are chosen, and where random numbers come from.

    Attributes:
        pad_token_id: of the target's config; fills what a sampled step rejects.
    """

    sampling: Sampling = sampler.GREEDY
    draw: Draw = torch.rand
    pad_token_id: int = 0


GREEDY = Chance()


def first_token(logits: Tensor, params: Tensor, chance: Chance) -> int:
    """The token after a prompt, from logits [vocab] and [3] top_k, top_p, temperature."""
    if not chance.sampling.do_sample and not chance.sampling.dynamic:
        return int(logits.argmax())
    return int(drawn(logits[None], params[None], chance))


def drawn(logits: Tensor, params: Tensor, chance: Chance) -> Tensor:
    """[rows] tokens from logits [rows, vocab], each with a number of its own."""
    ids, probs = sampler.candidates(logits, params, chance.sampling)
    uniform = sampler.selector(chance.sampling, chance.draw, (len(logits), 1))
    return sampler.draw_token(ids, probs, uniform)


def judged(drafts: Tensor, logits: Tensor, params: Tensor, chance: Chance) -> SampledStep:
    """Accept drafts [rows, k] with the target's filtered probability, from logits
    [rows, k + 1, vocab], and draw what comes after them.

    One number a row of the batch picks the resampled token of all k + 1 positions.
    """
    ids, probs = sampler.candidates(logits, params, chance.sampling)
    adjusted = acceptance.adjusted_probs(drafts, ids, probs)
    uniform = sampler.selector(chance.sampling, chance.draw, (len(drafts), 1, 1))
    resampled = sampler.draw_token(ids, adjusted, uniform)
    target_probs = acceptance.draft_probs(drafts, ids, probs)
    accepted = acceptance.num_accepted_by_test(target_probs, chance.draw(tuple(drafts.shape)))
    tokens = acceptance.selected(drafts, resampled, accepted, chance.pad_token_id)
    return SampledStep(ids, probs, adjusted, resampled, accepted, tokens)
