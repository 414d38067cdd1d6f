"""What a comparison of samples would have found: power, and the samples that a power needs.

For a chi-square test of two samples over `num_cells` outcomes. Differences are total variation
distances; of all differences of one size the hardest to find is taken, the one spread over every
outcome in proportion to its probability: its noncentrality with n samples on either side is
2 n δ², and any other of that size has more. (Cohen 1988, "Statistical Power Analysis", chapter 7,
for the noncentral distribution; the minimum by Cauchy and Schwarz.)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from neuron_spec.errors import DependencyError

POWER = 0.8


@dataclass(frozen=True)
class Power:
    """What a test with these samples finds.

    Attributes:
        detectable_tv: the smallest total variation distance found with probability `power`.
    """

    num_samples: int
    num_cells: int
    significance: float
    power: float
    detectable_tv: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def power_of(
    num_samples: int, num_cells: int, significance: float, *, power: float = POWER
) -> Power:
    """Of a test with so many samples on either side."""
    noncentrality = needed_noncentrality(max(1, num_cells - 1), significance, power)
    distance = math.sqrt(noncentrality / (2 * num_samples))
    return Power(num_samples, num_cells, significance, power, min(1.0, distance))


def samples_for(
    distance: float, num_cells: int, significance: float, *, power: float = POWER
) -> int:
    """Samples on either side that find a total variation distance with this power."""
    noncentrality = needed_noncentrality(max(1, num_cells - 1), significance, power)
    return math.ceil(noncentrality / (2 * distance**2))


@lru_cache(maxsize=4096)
def needed_noncentrality(freedom: int, significance: float, power: float) -> float:
    """The noncentrality at which a chi-square test has this power."""
    stats, optimize = scipy("stats"), scipy("optimize")
    critical = stats.chi2.isf(significance, freedom)

    def lacking(noncentrality: float) -> float:
        return float(stats.ncx2.sf(critical, freedom, noncentrality)) - power

    high = 1.0
    while lacking(high) < 0:
        high *= 2
    return float(optimize.brentq(lacking, 1e-9, high))


def scipy(part: str) -> Any:
    """SciPy's part of that name, imported when first used.

    Raises:
        DependencyError: SciPy is not installed.
    """
    from importlib import import_module

    try:
        return import_module(f"scipy.{part}")
    except ImportError:
        raise DependencyError(
            "level 2 needs SciPy", mend="pip install 'neuron-spec[evaluate]'"
        ) from None
