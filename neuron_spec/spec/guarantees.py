"""Which guarantee a verification rule gives, level by level, and who says so.

A claim is about the algorithm in exact arithmetic; numerics (rounding that depends on how many
positions a kernel computes at once) are a condition on every one of them. No claim is ever derived
from the name of a draft method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neuron_spec.spec.schema import VerificationSpec

Level = Literal["bitwise identity", "distribution equivalence", "quality parity"]
Status = Literal["stated", "not stated", "measured, not stated"]

NUMERICS = (
    "a claim about the algorithm: kernels that round differently for one and for several positions "
    "can still flip a near-tie"
)


@dataclass(frozen=True)
class Claim:
    """What a rule promises at one level, with its primary source."""

    level: Level
    status: Status
    source: str


_GREEDY_SOURCE = (
    "longest prefix equal to the target's argmax: Stern et al. 2018 (arXiv:1811.03115), section 3; "
    "the temperature-0 case of Leviathan et al. 2023 (arXiv:2211.17192), section 2.2"
)

_CLAIMS: dict[str, tuple[Claim, ...]] = {
    "greedy": (
        Claim("bitwise identity", "stated", _GREEDY_SOURCE),
        Claim("distribution equivalence", "stated", "follows from bitwise identity"),
        Claim("quality parity", "stated", "follows from bitwise identity"),
    ),
}


def claims_of(verification: VerificationSpec) -> tuple[Claim, ...]:
    """The claims of a rule with its parameters, strongest level first."""
    return _CLAIMS[verification.rule]
