"""What a verification says at its end: the level tested, whether it held, what the rule claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from neuron_spec.equivalence.distribution import FitResult
from neuron_spec.equivalence.identity import Comparison
from neuron_spec.equivalence.quality import QualityResult
from neuron_spec.equivalence.ties import Seeded
from neuron_spec.metrics.estimates import proportion
from neuron_spec.spec.guarantees import LEVELS, claims_of
from neuron_spec.spec.schema import VerificationSpec


@dataclass(frozen=True)
class Verdict:
    """The end of a run.

    Attributes:
        level: 1, 2 or 3, and `level_name` in words.
        held: False for a defect, and where samples do not suffice to say that it held.
        summary: one sentence with the numbers behind it.
        claim: what the rule says of this level, and by which source; None for an unknown rule.
        notes: what limits the verdict.
    """

    level: int
    level_name: str
    held: bool
    summary: str
    claim: str | None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def strongest_level(verification: VerificationSpec, *, has_seeds: bool = True) -> int:
    """The level to test: the strongest that the rule states; 3 where it states none.

    Args:
        has_seeds: whether one seed means the same random numbers on both sides, as it does in one
            process: sample match states identity for these only.
    """
    for level, claim in enumerate(claims_of(verification), start=1):
        needs_seeds = level == 1 and verification.rule != "greedy" and not has_seeds
        if claim.status == "stated" and not needs_seeds:
            return level
    return len(LEVELS)


def verdict_on_identity(
    comparisons: Sequence[Comparison],
    verification: VerificationSpec | None,
    *,
    seeded: Seeded | None = None,
) -> Verdict:
    """Level 1, of greedy output or of `seeded` samples."""
    num_defects = sum(comparison.num_defects for comparison in comparisons)
    divergences = sum(len(comparison.divergences) for comparison in comparisons)
    identical = sum(comparison.is_identical for comparison in comparisons)
    count = len(comparisons)
    positions = sum(comparison.num_compared for comparison in comparisons)
    summary = (
        f"{identical} of {count} identical, {divergences - num_defects} near-tie(s), "
        f"{num_defects} defect(s)"
    )
    if seeded is not None:
        summary += f", sampled at temperature {seeded.temperature:g} from seed {seeded.seed} on"
    by_text = any(
        c.reference.token_ids is None or c.candidate.token_ids is None for c in comparisons
    )
    notes = [*_few(count), *_limits(comparisons, by_text)]
    unit = "characters" if by_text else "positions"
    if not num_defects:
        bound = proportion(0, max(1, count)).high
        notes.append(
            f"{positions} {unit} of {count} prompt(s) compared: up to {bound:.0%} of prompts "
            "like these could still hold a defect (95 %)"
        )
    cut = [c for c in comparisons if c.divergences and c.num_compared < _length(c)]
    if cut:
        notes.append(f"in {len(cut)} prompt(s) what follows a divergence was not all compared")
    return _verdict(1, num_defects == 0, summary, verification, notes)


def verdict_on_distribution(
    result: FitResult, num_prompts: int, verification: VerificationSpec | None
) -> Verdict:
    """Level 2."""
    failures = result.failures
    samples = f"{result.num_samples} samples a side"
    shape = f"{len(result.tests)} tests of {num_prompts} prompt(s), {samples}"
    if failures:
        first = failures[0]
        where = "whole outputs" if first.position is None else f"output position {first.position}"
        summary = (
            f"different: {len(failures)} of {shape}; clearest at {where} of prompt "
            f"{first.prompt}: total variation {first.tv:.3f} where {first.expected_tv:.3f} is "
            f"chance, corrected p {first.adjusted_p:.1e}"
        )
    else:
        summary = (
            f"no difference found in {shape}, at significance {result.significance:g}; a total "
            f"variation of {result.detectable_tv:.3f} in any of them would have been found with "
            f"probability {result.power:g}"
        )
    sizes = ", ".join(f"{n} for {tv:g}" for tv, n in result.samples_for_tv.items())
    notes = [*_few(num_prompts), f"samples a side to find smaller differences: {sizes}"]
    return _verdict(2, not failures, summary, verification, notes)


def verdict_on_quality(
    results: Sequence[QualityResult], verification: VerificationSpec | None
) -> Verdict:
    """Level 3."""
    parts = []
    for result in results:
        bounds = f"{result.difference.shown(4)}, margin {result.margin:.4g}"
        parts.append(f"{result.metric} {result.outcome} ({bounds})")
    notes = _few(min(result.difference.num_samples for result in results))
    for result in results:
        if result.outcome == "undecided" and result.prompts_needed:
            notes.append(f"{result.metric}: about {result.prompts_needed} prompts would decide")
    if verification is not None and claims_of(verification)[1].status != "stated":
        notes.append("the rule states no equal distribution: quality is what can be tested of it")
    held = all(result.outcome == "held" for result in results)
    return _verdict(3, held, "; ".join(parts), verification, notes)


def _verdict(
    level: int,
    held: bool,
    summary: str,
    verification: VerificationSpec | None,
    notes: list[str],
) -> Verdict:
    name = LEVELS[level - 1]
    if verification is None:
        return Verdict(level, name, held, summary, None, tuple(notes))
    claim = claims_of(verification)[level - 1]
    told = f"rule '{verification.rule}' at this level: {claim.status} ({claim.source})"
    if claim.status != "stated" and level < len(LEVELS):
        notes = [*notes, "the rule does not state this level: a difference is no defect of its own"]
    return Verdict(level, name, held, summary, told, tuple(notes))


def _limits(comparisons: Sequence[Comparison], by_text: bool) -> list[str]:
    """What the comparison could not see."""
    notes = []
    if by_text:
        notes.append("compared by text: another way to spell the same text as tokens is not seen")
    blind = [d for c in comparisons for d in c.divergences if d.margin is None]
    if any(d.reference_token is not None and d.candidate_token is not None for d in blind):
        notes.append("no log-probabilities are told: a near-tie counts as a defect here")
    tolerances = [d.border_tolerance for c in comparisons for d in c.divergences]
    known = [tolerance for tolerance in tolerances if tolerance is not None]
    if known:
        notes.append(
            f"near-tie: the number drawn within {max(known):.2g} of a border between two shares"
        )
    return notes


def _few(num_prompts: int) -> list[str]:
    if num_prompts == 1:
        return ["one prompt proves nothing about others"]
    return []


def _length(comparison: Comparison) -> int:
    ids = comparison.reference.token_ids
    return len(comparison.reference.text) if ids is None else len(ids)
