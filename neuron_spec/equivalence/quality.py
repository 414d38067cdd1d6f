"""Level 3: is the candidate as good as the reference, within a stated margin?

Every metric gives a number per output. Outputs of one prompt are compared in pairs (the mean where
a prompt is sampled several times), so that prompts may differ as they like; the interval is over
prompts. The candidate is not inferior if the whole interval lies on the right side of the margin.
All metrics have to hold, each tested at the full confidence: for that no correction is needed
(Berger 1982, intersection-union tests).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from statistics import fmean
from typing import Any, Literal

from neuron_spec.equivalence.systems import Ask, Reply, System
from neuron_spec.errors import UserError
from neuron_spec.metrics.estimates import CONFIDENCE, Estimate, mean, normal_quantile

Direction = Literal["higher", "lower", "same"]
Outcome = Literal["held", "violated", "undecided"]
Score = Callable[[Any, Reply], float | None]
"""(workload row, reply) -> a number, or None where the metric does not apply."""


@dataclass(frozen=True)
class Metric:
    """One number of an output.

    Attributes:
        better: which way is good; `same` for what should change neither way.
        margin: the largest loss that is still as good, in the metric's own unit.
        is_relative: the margin is a share of the reference's mean.
    """

    name: str
    score: Score = field(compare=False)
    better: Direction
    margin: float
    is_relative: bool = False


@dataclass(frozen=True)
class QualityResult:
    """One metric over all prompts.

    Attributes:
        difference: candidate minus reference, with the interval over prompts.
        margin: in the metric's unit.
        prompts_needed: how many prompts would decide at this spread; None where not known.
    """

    metric: str
    better: Direction
    reference: Estimate
    candidate: Estimate
    difference: Estimate
    margin: float
    outcome: Outcome
    prompts_needed: int | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def length_of(row: Any, reply: Reply) -> float:
    """Output tokens, or characters where a system does not tell them."""
    return float(len(reply.text) if reply.num_tokens is None else reply.num_tokens)


def log_likelihood_of(row: Any, reply: Reply) -> float | None:
    """Mean log-probability of the output's tokens under the target, in nats a token."""
    return fmean(reply.logprobs) if reply.logprobs else None


def exact_match_of(row: Any, reply: Reply) -> float | None:
    """1 if the output is one of the row's references, white space at the ends aside."""
    if not row.references:
        return None
    return float(reply.text.strip() in {reference.strip() for reference in row.references})


METRICS: dict[str, Metric] = {
    "length": Metric("length", length_of, "same", 0.05, is_relative=True),
    "log-likelihood": Metric("log-likelihood", log_likelihood_of, "higher", 0.05),
    "exact-match": Metric("exact-match", exact_match_of, "higher", 0.02),
}


def metric_of(text: str) -> Metric:
    """A metric by name, or a user's `module:function=margin`, each with an own margin if wanted.

    A user's function takes (row, text) and returns a number, higher being better.

    Raises:
        UserError: no such metric or function, or a margin that is none.
    """
    name, _, given = text.partition("=")
    margin = _margin(text, given) if given else None
    if name in METRICS:
        known = METRICS[name]
        return known if margin is None else _with_margin(known, margin)
    if ":" not in name:
        expected = f"{', '.join(METRICS)}, or module:function=margin"
        raise UserError("no such metric", where=name, expected=expected)
    if margin is None:
        raise UserError("a metric of yours needs a margin", where=name, mend=f"{name}=0.02")
    function = _function(name)
    return Metric(name, lambda row, reply: float(function(row, reply.text)), "higher", margin)


def compare_quality(
    rows: Sequence[Any],
    replies: tuple[Sequence[Sequence[Reply]], Sequence[Sequence[Reply]]],
    metrics: Sequence[Metric],
    *,
    confidence: float = CONFIDENCE,
) -> list[QualityResult]:
    """Compare outputs metric by metric.

    Args:
        replies: of the reference and of the candidate: for every row one or more outputs.

    Raises:
        UserError: a metric applies to no row.
    """
    return [_compare(rows, replies, metric, confidence) for metric in metrics]


def answer_all(
    systems: tuple[System, System],
    rows: Sequence[Any],
    *,
    num_samples: int,
    max_new_tokens: int,
    options: Mapping[str, Any],
    seed: int = 0,
) -> tuple[list[list[Reply]], list[list[Reply]]]:
    """Every row answered by both systems, `num_samples` times with different seeds."""
    sides: list[list[list[Reply]]] = []
    for side, system in enumerate(systems):
        replies: list[list[Reply]] = []
        for index, row in enumerate(rows):
            first = seed + ((2 * index + side) << 24)
            asks = [
                Ask(row.prompt, max_new_tokens, options, seed=first + number)
                for number in range(num_samples)
            ]
            replies.append(system.reply(asks))
        sides.append(replies)
    return sides[0], sides[1]


def _compare(
    rows: Sequence[Any],
    replies: tuple[Sequence[Sequence[Reply]], Sequence[Sequence[Reply]]],
    metric: Metric,
    confidence: float,
) -> QualityResult:
    pairs: list[tuple[float, float]] = []
    for row, one, other in zip(rows, *replies, strict=True):
        scores = [_mean_score(metric, row, outputs) for outputs in (one, other)]
        if scores[0] is not None and scores[1] is not None:
            pairs.append((scores[0], scores[1]))
    if not pairs:
        raise UserError(
            "the metric applies to no row",
            where=metric.name,
            mend="exact-match needs references in the file, log-likelihood systems that tell "
            "log-probabilities",
        )
    reference = mean([a for a, _ in pairs], confidence=confidence)
    difference = mean([b - a for a, b in pairs], confidence=confidence)
    margin = metric.margin * (abs(reference.value) if metric.is_relative else 1.0)
    return QualityResult(
        metric.name,
        metric.better,
        reference,
        mean([b for _, b in pairs], confidence=confidence),
        difference,
        margin,
        outcome_of(difference, margin, metric.better),
        _prompts_needed(difference, margin, confidence),
    )


def outcome_of(difference: Estimate, margin: float, better: Direction) -> Outcome:
    """Held if the interval lies within the margin, violated if beyond it, else undecided."""
    if difference.low is None or difference.high is None:
        return "undecided"
    # For `same` both ends count, and the interval of 1 - 2α gives two one-sided tests of level α.
    losses = {
        "higher": [(-difference.high, -difference.low)],
        "lower": [(difference.low, difference.high)],
        "same": [(-difference.high, -difference.low), (difference.low, difference.high)],
    }[better]
    if all(worst < margin or worst == margin == 0 for _, worst in losses):
        return "held"
    return "violated" if any(least > margin for least, _ in losses) else "undecided"


def _mean_score(metric: Metric, row: Any, outputs: Sequence[Reply]) -> float | None:
    scores = [metric.score(row, reply) for reply in outputs]
    known = [score for score in scores if score is not None]
    return fmean(known) if known and len(known) == len(scores) else None


def _prompts_needed(difference: Estimate, margin: float, confidence: float) -> int | None:
    """Prompts at which the interval would be half the margin, with this spread."""
    if difference.low is None or difference.high is None or margin <= 0:
        return None
    half = (difference.high - difference.low) / 2
    spread = half * math.sqrt(difference.num_samples) / normal_quantile(confidence)
    return max(2, math.ceil((normal_quantile(confidence) * spread / (margin / 2)) ** 2))


def _with_margin(metric: Metric, margin: float) -> Metric:
    return Metric(metric.name, metric.score, metric.better, margin, metric.is_relative)


def _margin(text: str, given: str) -> float:
    try:
        margin = float(given)
    except ValueError:
        margin = -1.0
    if not 0 <= margin < math.inf:
        raise UserError("not a margin", where=text, found=given, expected="a number, 0 or more")
    return margin


def _function(name: str) -> Callable[[Any, str], float]:
    module, _, attribute = name.partition(":")
    try:
        function: Callable[[Any, str], float] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        mend = "name an importable module and a function in it; PYTHONPATH=. finds your folder"
        raise UserError(f"cannot be imported: {error}", where=name, mend=mend) from None
    return function
