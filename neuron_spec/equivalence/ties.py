"""What a divergence of two token sequences was: rounding, or a defect.

Greedy: two tokens whose logits are both closer to the best one than rounding can tell apart.

Sampled with a seed: a token is the one whose share of [0, 1) holds the number drawn for its
position (the inverse CDF), so that two systems with the same number differ by rounding only where
that number lies next to a border between shares. How far rounding moves a border follows from the
same margin of logits: with logits over the temperature each off by at most δ, probabilities that
sum to p come to at most p·r / (p·r + 1 - p), r = exp(2δ): off by at most tanh(δ/2). Two logits that
the margin lets change places are off by half of it each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["near-tie", "defect"]


@dataclass(frozen=True)
class Divergence:
    """An output position at which two systems differ.

    Attributes:
        position: of the token, or of the character where only text is compared.
        reference_token, candidate_token: ids, or texts; None where an output has ended.
        margin: logit of the reference's token minus logit of the other one, by a fresh prefill of
            the common prefix; None where no logits are told or one output simply ended.
        top2_margin: distance of the two best logits there.
        uniform: the number drawn for this position; None for greedy output.
        border_distance: how far it lies from the share of the token that it should not have given,
            whichever of the two that is; in units of probability.
        border_tolerance: how far rounding can move a border of shares.
    """

    position: int
    reference_token: int | str | None
    candidate_token: int | str | None
    margin: float | None
    top2_margin: float | None
    kind: Kind
    uniform: float | None = None
    border_distance: float | None = None
    border_tolerance: float | None = None


@dataclass(frozen=True)
class Seeded:
    """How sampled output was drawn."""

    temperature: float
    seed: int


def greedy_divergence(
    position: int, tokens: tuple[int, int], logits: Tensor, *, near_tie_margin: float
) -> Divergence:
    """Judge by the target's logits [vocab] after the common prefix; tokens: (reference's, other).

    Both have to be near the best: two poor tokens may be close to each other without any rounding.
    """
    best, second = logits.topk(2).values.tolist()
    own, other = (float(logits[token]) for token in tokens)
    is_tie = best - min(own, other) <= near_tie_margin
    kind: Kind = "near-tie" if is_tie else "defect"
    return Divergence(position, *tokens, own - other, best - second, kind)


def sampled_divergence(
    position: int,
    tokens: tuple[int, int],
    logits: Tensor,
    drawn: tuple[Seeded, int],
    *,
    near_tie_margin: float,
) -> Divergence:
    """The same for seeded output.

    Args:
        drawn: with which temperature and seed, and the token's position in the whole sequence.
    """
    import torch

    from neuron_spec.rules.uniforms import SAMPLE_STREAM, uniform_at
    from neuron_spec.sampling import probabilities
    from neuron_spec.sampling_params import SamplingParams

    seeded, place = drawn
    uniform = float(uniform_at(torch.tensor(seeded.seed), torch.tensor(place), SAMPLE_STREAM))
    probs = probabilities(logits, SamplingParams(temperature=seeded.temperature)).double()
    ends = probs.cumsum(dim=-1)
    distance = max(_distance(uniform, *_share(ends, probs, token)) for token in tokens)
    tolerance = math.tanh(near_tie_margin / 4 / seeded.temperature)
    kind: Kind = "near-tie" if distance <= tolerance else "defect"
    best, second = logits.topk(2).values.tolist()
    margin = float(logits[tokens[0]]) - float(logits[tokens[1]])
    return Divergence(position, *tokens, margin, best - second, kind, uniform, distance, tolerance)


def _share(ends: Tensor, probs: Tensor, token: int) -> tuple[float, float]:
    end, total = float(ends[token]), float(ends[-1])
    return (end - float(probs[token])) / total, end / total


def _distance(number: float, low: float, high: float) -> float:
    return max(low - number, number - high, 0.0)
