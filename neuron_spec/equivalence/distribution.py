"""Level 2: do sampled outputs of two systems come from one distribution?

Per prompt: one test for every output position, whatever came before it, and a joint test of whole
outputs. Each is a chi-square statistic of a two-row table of counts, and its p-value the share of
random relabellings of the samples with a statistic as large: exact for any counts. All p-values of
a run are corrected together by Holm's method (1979), so that the stated significance is the chance
that two equal systems are called different at all.

Outcomes too rare to tell anything are pooled, see `pooling.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from neuron_spec.equivalence.pooling import MIN_COUNT, Output, pooled, pooled_beginnings
from neuron_spec.equivalence.power import POWER, Power, power_of, samples_for
from neuron_spec.equivalence.systems import Ask, Reply, System
from neuron_spec.errors import UserError

SIGNIFICANCE = 0.01
END = "<end>"
"""Fills the positions after an output's end: ending is an outcome too."""
MAX_RELABELLINGS = 100_000


@dataclass(frozen=True)
class FitTest:
    """One test of one prompt.

    Attributes:
        position: of the output; None for the joint test of whole outputs.
        tv: total variation distance of the two samples, and `expected_tv` what two samples of one
            distribution show on average: only what is beyond that tells anything.
        p_value: before, `adjusted_p` after Holm's correction over the whole run.
    """

    prompt: int
    position: int | None
    p_value: float
    tv: float
    expected_tv: float
    power: Power
    adjusted_p: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class FitResult:
    """All tests of a run.

    Attributes:
        num_samples: on either side, for every prompt.
        detectable_tv: the smallest difference that every single test would have found with
            probability `power`.
        samples_for_tv: proposed samples a side: wanted distance -> how many.
    """

    tests: tuple[FitTest, ...]
    significance: float
    num_samples: int
    power: float
    detectable_tv: float
    samples_for_tv: dict[float, int]

    @property
    def failures(self) -> list[FitTest]:
        """The tests that found a difference, the clearest first."""
        found = [test for test in self.tests if test.adjusted_p < self.significance]
        return sorted(found, key=lambda test: (test.adjusted_p, test.p_value, -test.tv))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "significance": self.significance,
            "num_samples": self.num_samples,
            "num_tests": len(self.tests),
            "num_failures": len(self.failures),
            "power": self.power,
            "detectable_tv": self.detectable_tv,
            "samples_for_tv": {str(tv): count for tv, count in self.samples_for_tv.items()},
            "failures": [test.as_dict() for test in self.failures],
            "tests": [test.as_dict() for test in self.tests],
        }


@dataclass(frozen=True)
class FitSettings:
    """How much is sampled, and what counts as a difference.

    Attributes:
        seed: of the samples (every one has its own) and of the relabellings.
        options: sampling options of every request; `temperature` above 0.
    """

    num_samples: int
    max_new_tokens: int
    options: dict[str, Any]
    significance: float = SIGNIFICANCE
    power: float = POWER
    wanted_tv: float = 0.05
    seed: int = 0


def compare_distributions(
    reference: System,
    candidate: System,
    prompts: Sequence[Any],
    settings: FitSettings,
    *,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> FitResult:
    """Sample every prompt from both systems and test."""
    samples = []
    for index, prompt in enumerate(prompts):
        progress("prompts", index, len(prompts))
        samples.append(_sample_pair((reference, candidate), prompt, index, settings))
    progress("prompts", len(prompts), len(prompts))
    return compare_samples(samples, settings)


def compare_samples(
    samples: Sequence[tuple[Sequence[Output], Sequence[Output]]], settings: FitSettings
) -> FitResult:
    """Test outputs that were sampled already.

    Args:
        samples: for every prompt, the outputs of the reference and of the candidate.

    Raises:
        UserError: fewer than `MIN_COUNT` samples on a side.
    """
    fewest = min(len(outputs) for pair in samples for outputs in pair)
    if fewest < MIN_COUNT:
        raise UserError(
            "too few samples to test a distribution",
            where="samples",
            found=fewest,
            expected=f"at least {MIN_COUNT}; several hundred to find anything but gross errors",
        )
    num_tests = len(samples) * (settings.max_new_tokens + 1)
    relabelling = _Relabelling(settings, num_tests)
    tests = [
        test
        for prompt, pair in enumerate(samples)
        for test in relabelling.tests_of(prompt, pair, settings.max_new_tokens)
    ]
    adjusted = holm([test.p_value for test in tests])
    tests = [
        FitTest(**{**vars(test), "adjusted_p": p}) for test, p in zip(tests, adjusted, strict=True)
    ]
    cells = max(test.power.num_cells for test in tests)
    wanted = sorted({settings.wanted_tv, 0.1, 0.02}, reverse=True)
    each = settings.significance / num_tests
    return FitResult(
        tests=tuple(tests),
        significance=settings.significance,
        num_samples=fewest,
        power=settings.power,
        detectable_tv=max(test.power.detectable_tv for test in tests),
        samples_for_tv={d: samples_for(d, cells, each, power=settings.power) for d in wanted},
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, in their order."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def padded(tokens: Sequence[Hashable], length: int) -> Output:
    """An output of exactly `length` outcomes."""
    return (*tokens[:length], *[END] * (length - len(tokens)))


@dataclass(frozen=True)
class _Relabelling:
    """Turns counts into p-values; one random stream for a run."""

    settings: FitSettings
    num_tests: int

    def tests_of(
        self, prompt: int, pair: tuple[Sequence[Output], Sequence[Output]], length: int
    ) -> list[FitTest]:
        """The tests of one prompt, positions first."""
        outputs = [[padded(output, length) for output in side] for side in pair]
        rng = np.random.default_rng([self.settings.seed, prompt])
        tests = []
        for position in range(length):
            sides = [[output[position] for output in side] for side in outputs]
            tests.append(self._test(prompt, position, pooled(*sides), rng))
        tests.append(self._test(prompt, None, pooled_beginnings(*outputs), rng))
        return tests

    def _test(
        self, prompt: int, position: int | None, table: np.ndarray[Any, Any], rng: Any
    ) -> FitTest:
        sizes = table.sum(axis=1)
        each = self.settings.significance / self.num_tests
        power = power_of(int(sizes.min()), table.shape[1], each, power=self.settings.power)
        if table.shape[1] < 2:  # one outcome: nothing can differ
            return FitTest(prompt, position, 1.0, 0.0, 0.0, power)
        # Enough relabellings for a p-value well below what Holm asks of the smallest.
        count = min(MAX_RELABELLINGS, max(1999, math.ceil(5 / each)))
        first = rng.multivariate_hypergeometric(table.sum(axis=0), int(sizes[0]), size=count)
        relabelled = np.stack([first, table.sum(axis=0) - first], axis=1)  # [count, 2, cells]
        as_large = int((chi_square(relabelled) >= chi_square(table[None])[0] - 1e-9).sum())
        return FitTest(
            prompt,
            position,
            (1 + as_large) / (1 + count),
            float(total_variation(table[None])[0]),
            float(total_variation(relabelled).mean()),
            power,
        )


def chi_square(tables: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[n] statistics of tables [n, 2, cells] without empty columns."""
    rows = tables.sum(axis=2, keepdims=True)
    columns = tables.sum(axis=1, keepdims=True)
    expected = rows * columns / rows.sum(axis=1, keepdims=True)
    statistics: np.ndarray[Any, Any] = ((tables - expected) ** 2 / expected).sum(axis=(1, 2))
    return statistics


def total_variation(tables: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[n] distances of the two rows of tables [n, 2, cells], as shares."""
    shares = tables / tables.sum(axis=2, keepdims=True)
    distances: np.ndarray[Any, Any] = np.abs(shares[:, 0] - shares[:, 1]).sum(axis=1) / 2
    return distances


def _sample_pair(
    systems: tuple[System, System], prompt: Any, index: int, settings: FitSettings
) -> tuple[list[Output], list[Output]]:
    """Outputs of both. All seeds differ: with one seed two systems may be alike, not only equal."""
    replies: list[list[Reply]] = []
    for side, system in enumerate(systems):
        first = settings.seed + ((2 * index + side) << 24)
        asks = [
            Ask(prompt, settings.max_new_tokens, settings.options, seed=first + number)
            for number in range(settings.num_samples)
        ]
        replies.append(system.reply(asks))
    by_ids = all(reply.token_ids is not None for side in replies for reply in side)
    by_tokens = all(reply.tokens is not None for side in replies for reply in side)
    sides = [[_output(reply, by_ids, by_tokens) for reply in side] for side in replies]
    return sides[0], sides[1]


def _output(reply: Reply, by_ids: bool, by_tokens: bool) -> Output:
    if by_ids:
        return reply.token_ids or ()
    if by_tokens:
        return tuple(token.text for token in reply.tokens or ())
    return tuple(reply.text)
