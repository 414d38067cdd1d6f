"""Intervals: against SciPy, against simulation, and none where samples cannot give one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from scipy import stats

from neuron_spec.metrics.estimates import (
    Estimate,
    geometric_mean,
    mean,
    normal_quantile,
    proportion,
    quantile,
    ratio_of_pairs,
    ratio_of_sums,
    t_quantile,
)


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 1000])
def test_students_quantile(confidence: float, freedom: int) -> None:
    exact = stats.t.ppf((1 + confidence) / 2, freedom)
    assert t_quantile(confidence, freedom) == pytest.approx(exact, rel=0.01)


def test_the_mean_and_its_interval() -> None:
    values = [3.0, 5.0, 4.0, 8.0]
    estimate = mean(values)
    exact = stats.t.interval(0.95, 3, loc=5.0, scale=stats.sem(values))
    assert (estimate.value, estimate.num_samples) == (5.0, 4)
    assert (estimate.low, estimate.high) == pytest.approx(exact, rel=0.005)


@pytest.mark.parametrize("function", [mean, geometric_mean])
def test_one_sample_has_no_interval(function: Callable[[Sequence[float]], Estimate]) -> None:
    estimate = function([3.0])
    assert (estimate.value, estimate.low, estimate.high) == (pytest.approx(3.0), None, None)
    assert estimate.relative_error is None
    assert estimate.shown() == "3.00 [-]"


def test_ratios_of_pairs_are_geometric() -> None:
    estimate = ratio_of_pairs([(2.0, 1.0), (8.0, 1.0)])
    assert estimate.value == pytest.approx(4.0)
    assert estimate.low is not None
    assert estimate.high is not None
    assert 0 < estimate.low < 4 < estimate.high
    assert estimate.low * estimate.high == pytest.approx(16.0)
    drifting = ratio_of_pairs([(2.0, 1.0), (20.0, 10.0), (200.0, 100.0)])
    assert (drifting.low, drifting.high) == pytest.approx((2.0, 2.0))


def test_ratio_of_sums_weighs_by_the_denominator() -> None:
    estimate = ratio_of_sums([(9.0, 3.0), (1.0, 1.0)])
    assert estimate.value == 2.5
    same = ratio_of_sums([(2.0, 1.0), (4.0, 2.0), (8.0, 4.0)])
    assert (same.low, same.high) == pytest.approx((2.0, 2.0))
    assert ratio_of_sums([(3.0, 2.0)]).low is None
    # With equal denominators it is the mean and its interval.
    values = [3.0, 5.0, 4.0, 8.0]
    plain, linearised = mean(values), ratio_of_sums([(value, 1.0) for value in values])
    assert (linearised.low, linearised.high) == pytest.approx((plain.low, plain.high))


def test_wilsons_interval() -> None:
    exact = stats.binomtest(7, 20).proportion_ci(0.95, method="wilson")
    estimate = proportion(7, 20)
    assert (estimate.low, estimate.high) == pytest.approx((exact.low, exact.high))
    assert proportion(0, 5).low == 0
    assert proportion(5, 5).high == 1


def test_percentiles_are_linear_between_neighbours() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert quantile(values, 0.5).value == 2.5
    assert quantile(values, 0.9).value == pytest.approx(3.7)
    assert quantile([7.0], 0.99).value == 7.0
    assert (quantile([7.0], 0.5).low, quantile([7.0], 0.5).high) == (None, None)


def test_few_samples_cannot_bound_an_extreme_percentile_from_above() -> None:
    values = [float(n) for n in range(30)]
    assert quantile(values, 0.99).high is None
    assert quantile(values, 0.99).low is not None
    assert quantile(values, 0.5).high is not None
    many = quantile([float(n) for n in range(3000)], 0.99)  # no overflow
    assert many.low is not None
    assert many.high is not None
    assert many.low < many.value < many.high


def test_the_interval_of_a_median_takes_the_order_statistics_of_the_sign_test() -> None:
    """For 10 samples the 2nd and the 9th: P(at most one below) = 11 / 1024, of two 56 / 1024."""
    estimate = quantile([float(n) for n in range(1, 11)], 0.5)
    assert (estimate.low, estimate.high) == (2.0, 9.0)


@pytest.mark.parametrize(("count", "share"), [(40, 0.5), (120, 0.9)])
def test_the_interval_of_a_percentile_covers_it_as_often_as_it_says(
    count: int, share: float
) -> None:
    rng, true = random.Random(1), -math.log(1 - share)
    covered = 0
    for _ in range(300):
        estimate = quantile([rng.expovariate(1.0) for _ in range(count)], share)
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= true <= estimate.high
    assert 0.92 <= covered / 300 <= 1.0  # at least 0.95, conservative as counts are discrete


def test_the_relative_error_is_that_of_the_logarithm() -> None:
    estimate = ratio_of_pairs([(1.0, 1.0), (1.1, 1.0), (0.9, 1.0)])
    assert estimate.relative_error is not None
    half = math.log(estimate.high or 0) - math.log(estimate.value)
    assert estimate.relative_error == pytest.approx(half / normal_quantile(0.95))
    assert Estimate(1.0, -0.5, 2.5, 3).relative_error is None
    assert Estimate(1.0, 1.0, 1.0, 3).relative_error == 0
    assert estimate.shown(1) == f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]"
