"""Which guarantee a verification rule gives, level by level, and who says so.

A claim is about the algorithm in exact arithmetic; numerics (rounding that depends on how many
positions a kernel computes at once) are a condition on every one of them. No claim is ever derived
from the name of a draft method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from neuron_spec.spec.schema import VerificationSpec

Level = Literal["bitwise identity", "distribution equivalence", "quality parity"]
Status = Literal["stated", "not stated", "measured, not stated"]
LEVELS: tuple[Level, ...] = get_args(Level)

NUMERICS = (
    "a claim about the algorithm: kernels that round differently for one and for several positions "
    "can still flip a near-tie"
)
PINNED_NUMERICS = (
    "shapes are pinned: in one opened artifact a token's logits are bitwise the same for every k "
    "and beside every other request, as checked when it was built"
)

INT8_NUMERICS = (
    "the target's weights are rounded to int8, which is another model than the checkpoint"
)


@dataclass(frozen=True)
class Claim:
    """What a rule promises at one level, with its primary source."""

    level: Level
    status: Status
    source: str


_FOLLOWS = "follows from the level above"

_GREEDY = (
    "longest prefix equal to the target's argmax: Stern et al. 2018 (arXiv:1811.03115), section 3; "
    "the temperature-0 case of Leviathan et al. 2023 (arXiv:2211.17192), section 2.2"
)
_REJECTION = (
    "the output has the target's distribution whatever the draft: Leviathan et al. 2023 "
    "(arXiv:2211.17192), Algorithm 1 and appendix A.1; Chen et al. 2023 (arXiv:2302.01318), "
    "theorem 1; for trees Miao et al. 2023 (arXiv:2305.09781), section 4.3"
)
_REJECTION_TOKENS = (
    "which tokens come depends on the draft, also with one seed: only their distribution is kept "
    "(arXiv:2211.17192, Algorithm 1)"
)
_LENIENT = (
    "with lenience below 1 the output is not the target's; only a bound is stated, no token has "
    "more than target / lenience, and none from below: Leviathan et al. 2023 (arXiv:2211.17192), "
    "appendix A.5"
)
_TYPICAL = (
    "typical acceptance does not keep the target's distribution, by design: Cai et al. 2024 "
    "(arXiv:2401.10774), section 2.3.1"
)
_TYPICAL_QUALITY = (
    "measured as MT-Bench scores for several epsilon: Cai et al. 2024 (arXiv:2401.10774), "
    "experiments; no bound is given"
)
_SAMPLE_MATCH = (
    "every token is the target's own sample, accepted or not: Miao et al. 2023 "
    "(arXiv:2305.09781), section 4.3, naive sampling"
)
_SAMPLE_MATCH_TOKENS = (
    "given the same random number at every output position, as a seeded request has here: each "
    "token is then a function of its prefix and that number alone; drafter invariance, Daliri et "
    "al. 2024 (arXiv:2408.07978). Without a seed only the distribution is common"
)


def _all_levels(bitwise: tuple[Status, str], *others: tuple[Status, str]) -> tuple[Claim, ...]:
    """Claims for all three levels, strongest first; levels left out follow from the one above."""
    given = [bitwise, *others]
    given += [(given[-1][0], _FOLLOWS)] * (len(LEVELS) - len(given))
    return tuple(
        Claim(level, status, source) for level, (status, source) in zip(LEVELS, given, strict=True)
    )


_KEEPS_THE_DISTRIBUTION = _all_levels(("not stated", _REJECTION_TOKENS), ("stated", _REJECTION))
_KEEPS_A_BOUND = _all_levels(
    ("not stated", _LENIENT), ("not stated", _LENIENT), ("not stated", _LENIENT)
)
_CLAIMS: dict[str, tuple[Claim, ...]] = {
    "greedy": _all_levels(("stated", _GREEDY)),
    "rejection": _KEEPS_THE_DISTRIBUTION,
    "typical": _all_levels(
        ("not stated", _TYPICAL),
        ("not stated", _TYPICAL),
        ("measured, not stated", _TYPICAL_QUALITY),
    ),
    "sample-match": _all_levels(("stated", _SAMPLE_MATCH_TOKENS), ("stated", _SAMPLE_MATCH)),
}
RULES_WITH_CLAIMS = (*_CLAIMS, "lenient")


def claims_for(rule: str, *, lenience: float | None = None) -> tuple[Claim, ...]:
    """The claims of a rule with its parameters, strongest level first.

    Args:
        rule: one of `RULES_WITH_CLAIMS`.
        lenience: what `lenient` runs with, above 0 and at most 1; None for every other rule.

    Raises:
        ValueError: no such rule, or the lenience is missing, out of range or not the rule's: no
            claim is made for a parameter that nobody gave.
    """
    if rule == "lenient":
        if lenience is None or not 0 < lenience <= 1:
            raise ValueError(f"lenience: expected above 0 and at most 1, found {lenience}")
        return _KEEPS_THE_DISTRIBUTION if lenience == 1 else _KEEPS_A_BOUND
    if rule not in _CLAIMS:
        raise ValueError(f"no claims are known for the rule '{rule}'")
    if lenience is not None:
        raise ValueError(f"the rule '{rule}' has no lenience")
    return _CLAIMS[rule]


def claims_of(verification: VerificationSpec) -> tuple[Claim, ...]:
    """The claims of a rule with its parameters, strongest level first."""
    return claims_for(verification.rule, lenience=verification.lenience)
