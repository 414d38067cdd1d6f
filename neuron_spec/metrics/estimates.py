"""Figures with what they are worth: a value, its interval, and the number of samples behind it.

Pure Python, so that a bench needs no SciPy. An interval of None says that the samples cannot give
one; a single sample never can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure with its confidence interval; low and high are None where there is none."""

    value: float
    low: float | None
    high: float | None
    num_samples: int
    confidence: float = CONFIDENCE

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @property
    def relative_error(self) -> float | None:
        """Standard error of the logarithm, from an interval of positive figures."""
        if self.low is None or self.high is None or not 0 < self.low <= self.high:
            return None
        return math.log(self.high / self.low) / (2 * normal_quantile(self.confidence))

    def shown(self, digits: int = 2) -> str:
        """`1.77 [1.70, 1.84]`."""
        value = f"{self.value:.{digits}f}"
        if self.low is None or self.high is None:
            return f"{value} [-]"
        return f"{value} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def mean(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """The mean with Student's interval."""
    count, value = len(values), fmean(values)
    if count < 2:
        return Estimate(value, None, None, count, confidence)
    half = t_quantile(confidence, count - 1) * stdev(values) / math.sqrt(count)
    return Estimate(value, value - half, value + half, count, confidence)


def ratio_of_pairs(
    pairs: Sequence[tuple[float, float]], *, confidence: float = CONFIDENCE
) -> Estimate:
    """Geometric mean of a / b over pairs measured side by side: slow drifts cancel."""
    logs = mean([math.log(a / b) for a, b in pairs], confidence=confidence)
    ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
    return Estimate(math.exp(logs.value), ends[0], ends[1], len(pairs), confidence)


def geometric_mean(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """Of positive figures such as rates, whose spread is a factor; never below 0."""
    return ratio_of_pairs([(value, 1.0) for value in values], confidence=confidence)


def ratio_of_sums(
    pairs: Sequence[tuple[float, float]], *, confidence: float = CONFIDENCE
) -> Estimate:
    """Σ a / Σ b, each pair one independent cluster (a request with all its steps).

    The interval is that of the linearised ratio (Cochran 1977, "Sampling Techniques", section
    6.4); steps of one request are alike, so that counting them as independent would promise more.
    """
    total = sum(b for _, b in pairs)
    value, count = sum(a for a, _ in pairs) / total, len(pairs)
    if count < 2:
        return Estimate(value, None, None, count, confidence)
    squares = sum((a - value * b) ** 2 for a, b in pairs)
    error = math.sqrt(squares * count / (count - 1)) / total
    half = t_quantile(confidence, count - 1) * error
    return Estimate(value, value - half, value + half, count, confidence)


def quantile(values: Sequence[float], share: float, *, confidence: float = CONFIDENCE) -> Estimate:
    """A percentile (linear between neighbours) with the order statistics' interval.

    No shape is assumed: the number of samples below the percentile is binomial. With too few
    samples for that, one end or both are missing.
    """
    ordered, count = sorted(values), len(values)
    place = share * (count - 1)
    below = math.floor(place)
    above = min(below + 1, count - 1)
    value = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    first, last = _order_bounds(count, share, confidence)
    low = None if first is None else ordered[first]
    high = None if last is None else ordered[last]
    return Estimate(value, low, high, count, confidence)


def proportion(successes: int, count: int, *, confidence: float = CONFIDENCE) -> Estimate:
    """A share with Wilson's interval (1927), which stays within 0 … 1."""
    value, z = successes / count, normal_quantile(confidence)
    centre = (value + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(value * (1 - value) / count + z * z / (4 * count * count))
    half = z * spread / (1 + z * z / count)
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Estimate(value, min(low, value), max(high, value), count, confidence)


def normal_quantile(confidence: float) -> float:
    """Two-sided: 1.96 for 0.95."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def t_quantile(confidence: float, freedom: int) -> float:
    """Student's two-sided quantile: exact for 1 and 2 degrees, then Hill's series.

    Hill 1970, "Algorithm 396: Student's t-quantiles", in the form of Abramowitz and Stegun 26.7.5;
    within 1 % from 3 degrees on for confidences up to 0.99.
    """
    tail = (1 + confidence) / 2
    if freedom == 1:
        return math.tan(math.pi * (tail - 0.5))
    if freedom == 2:
        return (2 * tail - 1) * math.sqrt(2 / (1 - (2 * tail - 1) ** 2))
    z = NormalDist().inv_cdf(tail)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** (power + 1) for power, term in enumerate(terms))


def _order_bounds(count: int, share: float, confidence: float) -> tuple[int | None, int | None]:
    """Places of the order statistics that enclose a percentile, each tail at most half of rest."""
    tail = (1 - confidence) / 2
    reached, first, last = 0.0, None, None
    for below in range(count + 1):
        chance = _binomial(count, below, share)
        if reached + chance <= tail:
            first = below  # P(at most `below` samples lie under it) is still small
        if last is None and reached + chance >= 1 - tail and below < count:
            last = below
        reached += chance
    return first, last


def _binomial(count: int, successes: int, share: float) -> float:
    """By logarithms: the coefficient alone is beyond a float from about 1000 samples on."""
    ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(ways + successes * math.log(share) + (count - successes) * math.log1p(-share))
