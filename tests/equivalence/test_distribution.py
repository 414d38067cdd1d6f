"""Level 2's statistics: exact p-values, Holm, pooling, and the power that is stated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from neuron_spec.equivalence.distribution import (
    END,
    FitSettings,
    chi_square,
    compare_distributions,
    compare_samples,
    holm,
    padded,
    total_variation,
)
from neuron_spec.equivalence.power import power_of, samples_for
from neuron_spec.equivalence.systems import Ask, Reply, Token
from neuron_spec.errors import UserError


def test_statistics_are_those_of_scipy() -> None:
    table = np.array([[30, 50, 20], [45, 35, 20]])
    expected = stats.chi2_contingency(table, correction=False).statistic
    assert chi_square(table[None])[0] == pytest.approx(expected)
    assert total_variation(table[None])[0] == pytest.approx(0.15)


def test_holm_corrects_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_an_ended_output_is_filled_up() -> None:
    assert padded((1, 2), 4) == (1, 2, END, END)
    assert padded((1, 2, 3), 2) == (1, 2)


def draws(probs: np.ndarray, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Outputs of independent positions; probs: [length, vocab]."""
    columns = [rng.choice(len(row), size=count, p=row) for row in probs]
    return [tuple(map(int, output)) for output in zip(*columns, strict=True)]


UNIFORM = np.full((3, 8), 1 / 8)


def test_the_p_value_agrees_with_the_asymptotic_one() -> None:
    rng = np.random.default_rng(5)
    shifted = UNIFORM[0] * (1 + 0.35 * np.array([1, 1, 1, 1, -1, -1, -1, -1]))
    pair = (draws(UNIFORM[:1], 300, rng), draws(shifted[None], 300, rng))
    table = np.array([[side.count((v,)) for v in range(8)] for side in pair])
    exact = stats.chi2_contingency(table, correction=False).pvalue
    tests = compare_samples([pair], FitSettings(300, 1, {}, significance=0.01)).tests
    assert [test.position for test in tests] == [0, None]
    assert tests[0].p_value == pytest.approx(exact, rel=0.5, abs=0.003)
    assert tests[0].tv == pytest.approx(total_variation(table[None])[0])
    assert tests[0].p_value <= tests[0].adjusted_p <= 2 * tests[0].p_value


def test_equal_systems_are_called_different_as_rarely_as_stated() -> None:
    """At 10 %, in 150 runs of 4 tests each: 15 expected, more than 26 in less than 0.3 % of cases.

    Also a test from below: a test that never speaks would be worthless.
    """
    rng, settings = np.random.default_rng(7), FitSettings(60, 3, {}, significance=0.1)
    alarms = sum(
        bool(
            compare_samples([(draws(UNIFORM, 60, rng), draws(UNIFORM, 60, rng))], settings).failures
        )
        for _ in range(150)
    )
    assert 1 <= alarms <= 26


def test_the_stated_power_is_the_real_one() -> None:
    """The hardest difference of the size that is said to be found is found 8 times of 10."""
    rng, settings = np.random.default_rng(11), FitSettings(250, 1, {}, significance=0.05)
    distance = power_of(250, 8, 0.05 / 2).detectable_tv
    shifted = UNIFORM[:1] * (1 + 2 * distance * np.array([1, -1] * 4))
    assert np.abs(shifted - UNIFORM[:1]).sum() / 2 == pytest.approx(distance)
    found = 0
    for _ in range(120):
        pair = (draws(UNIFORM[:1], 250, rng), draws(shifted, 250, rng))
        result = compare_samples([pair], settings)
        assert result.detectable_tv == pytest.approx(distance)
        found += any(test.position == 0 for test in result.failures)
    assert 0.68 <= found / 120 <= 0.93


def test_the_proposed_sample_size_has_the_wanted_power() -> None:
    for distance in (0.3, 0.05):
        count = samples_for(distance, 10, 0.001)
        assert power_of(count, 10, 0.001).detectable_tv <= distance
        assert power_of(count - 1, 10, 0.001).detectable_tv > distance
    assert samples_for(0.05, 10, 0.001, power=0.95) > samples_for(0.05, 10, 0.001)
    assert samples_for(0.05, 20, 0.001) > samples_for(0.05, 10, 0.001)


def test_where_a_difference_is_and_that_others_are_not_blamed() -> None:
    rng, other = np.random.default_rng(1), UNIFORM.copy()
    other[1] = [0.5, 0.5, 0, 0, 0, 0, 0, 0]
    pairs = [
        (draws(UNIFORM, 200, rng), draws(UNIFORM, 200, rng)),
        (draws(UNIFORM, 200, rng), draws(other, 200, rng)),
    ]
    result = compare_samples(pairs, FitSettings(200, 3, {}))
    assert {(test.prompt, test.position) for test in result.failures} == {(1, 1), (1, None)}
    assert result.failures[0].tv > 0.6
    data = result.as_dict()
    assert (data["num_tests"], data["num_failures"], data["num_samples"]) == (8, 2, 200)


def test_positions_that_agree_can_hide_a_joint_difference() -> None:
    rng = np.random.default_rng(2)
    first = rng.integers(0, 2, size=(2, 300))
    pair = (
        [(int(a), int(b)) for a, b in zip(first[0], rng.integers(0, 2, size=300), strict=True)],
        [(int(a), int(a)) for a in first[1]],
    )
    (failure,) = compare_samples([pair], FitSettings(300, 2, {})).failures
    assert failure.position is None


def test_one_that_ends_earlier_is_found() -> None:
    whole, short = [(3, 4, 5)] * 40, [(3, 4)] * 40
    result = compare_samples([(whole, short)], FitSettings(40, 3, {}))
    assert {test.position for test in result.failures} == {2, None}


def test_outputs_that_never_repeat_are_compared_by_their_beginnings() -> None:
    rng = np.random.default_rng(3)
    pair = tuple(
        [(side, *map(int, rng.integers(0, 1000, size=3))) for _ in range(50)] for side in (7, 8)
    )
    (first, _, _, _, joint) = compare_samples([(pair[0], pair[1])], FitSettings(50, 4, {})).tests
    assert first.tv == joint.tv == 1.0
    assert joint.power.num_cells == 2


def test_rare_outcomes_share_a_cell() -> None:
    """Words seen 9 times together are pooled, 10 times are not."""
    often, rare = [(f"often{n}",) for n in range(3)], [(f"rare{n}",) for n in range(4)]
    first = often * 5 + rare * 5
    (test, _) = compare_samples([(first, often * 5 + rare * 4)], FitSettings(27, 1, {})).tests
    assert test.power.num_cells == 4  # three, and one for all that are rare
    (test, _) = compare_samples([(first, often * 5 + rare * 5)], FitSettings(35, 1, {})).tests
    assert test.power.num_cells == 7


def test_one_certain_outcome_is_no_difference() -> None:
    same = [(4,)] * 20
    tests = compare_samples([(same, same)], FitSettings(20, 1, {})).tests
    assert [test.p_value for test in tests] == [1.0, 1.0]


def test_a_handful_of_samples_is_refused() -> None:
    with pytest.raises(UserError, match="too few samples"):
        compare_samples([([(1,)] * 9, [(1,)] * 40)], FitSettings(9, 1, {}))


class Recording:
    """Answers with the seed's last digit and keeps what was asked."""

    name, max_prompt_tokens = "recording", None

    def __init__(self) -> None:
        self.asks: list[Ask] = []

    def reply(self, asks: Sequence[Ask]) -> list[Reply]:
        self.asks += asks
        return [Reply("", (int(ask.seed or 0) % 10,)) for ask in asks]

    def alternatives(self, prompt: object, reply: Reply, character: int) -> None:
        return None


def test_every_sample_has_a_seed_of_its_own() -> None:
    """With one seed for both sides sample match gives equal tokens: no test of a distribution."""
    systems = (Recording(), Recording())
    settings = FitSettings(20, 2, {"temperature": 0.5}, seed=3)
    result = compare_distributions(*systems, ["p", "q"], settings)
    seeds = [ask.seed for system in systems for ask in system.asks]
    assert len(set(seeds)) == len(seeds) == 80
    assert {ask.options["temperature"] for ask in systems[0].asks} == {0.5}
    assert {ask.max_new_tokens for ask in systems[0].asks} == {2}
    assert (result.num_samples, len(result.tests)) == (20, 6)
    again = (Recording(), Recording())
    compare_distributions(*again, ["p", "q"], settings)
    assert again[1].asks == systems[1].asks


@pytest.mark.parametrize("with_tokens", [True, False])
def test_texts_are_sampled_by_tokens_or_characters(with_tokens: bool) -> None:
    """The same text in other tokens: a difference of tokens only."""

    class Texts(Recording):
        def __init__(self, *words: str) -> None:
            super().__init__()
            self._tokens = tuple(Token(word, 0) for word in words) if with_tokens else None

        def reply(self, asks: Sequence[Ask]) -> list[Reply]:
            return [Reply("abc", tokens=self._tokens) for _ in asks]

    systems = (Texts("ab", "c"), Texts("a", "bc"))
    result = compare_distributions(*systems, ["p"], FitSettings(40, 3, {}))
    assert bool(result.failures) == with_tokens
