"""Level 3: paired metrics, margins, and an honest "undecided"."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.equivalence.quality import (
    METRICS,
    Metric,
    compare_quality,
    metric_of,
    outcome_of,
)
from neuron_spec.equivalence.systems import Reply
from neuron_spec.errors import UserError
from neuron_spec.metrics.estimates import Estimate

ROWS = [WorkloadRow(str(n), "x", (f" right {n}\n",)) for n in range(40)]


def replies(lengths: Sequence[int], rate: float = 1.0) -> list[list[Reply]]:
    rng = Random(1)
    return [
        [
            Reply(
                f"right {n}" if rng.random() < rate else "wrong",
                num_tokens=length,
                logprobs=(-1.0, -length / 100),
            )
        ]
        for n, length in enumerate(lengths)
    ]


LENGTHS = [20 + n for n in range(40)]


def test_equal_outputs_hold() -> None:
    results = compare_quality(ROWS, (replies(LENGTHS), replies(LENGTHS)), list(METRICS.values()))
    assert [(r.metric, r.outcome) for r in results] == [(name, "held") for name in METRICS]
    length, likelihood, match = results
    assert length.margin == pytest.approx(0.05 * 39.5)
    assert (length.difference.value, length.difference.num_samples) == (0, 40)
    assert likelihood.reference.value == pytest.approx(-(1 + 0.395) / 2)
    assert match.candidate.value == 1.0


def test_pairs_remove_what_prompts_have_in_common() -> None:
    """Lengths vary by 40 between prompts, the candidate's are one longer throughout."""
    longer = [length + 1 for length in LENGTHS]
    (result,) = compare_quality(ROWS, (replies(LENGTHS), replies(longer)), [METRICS["length"]])
    assert (result.difference.value, result.outcome) == (1.0, "held")
    assert result.difference.low == pytest.approx(1.0)
    much = [length + 4 for length in LENGTHS]
    (result,) = compare_quality(ROWS, (replies(LENGTHS), replies(much)), [METRICS["length"]])
    assert result.outcome == "violated"


def test_fewer_right_answers_are_found() -> None:
    (result,) = compare_quality(
        ROWS, (replies(LENGTHS), replies(LENGTHS, 0.5)), [METRICS["exact-match"]]
    )
    assert result.outcome == "violated"
    assert result.difference.value < -0.3


def test_few_prompts_leave_it_undecided_and_say_how_many_would_do() -> None:
    one, other = replies([10, 30, 20, 40]), replies([12, 26, 23, 38])
    (result,) = compare_quality(ROWS[:4], (one, other), [METRICS["length"]])
    assert result.outcome == "undecided"
    assert result.prompts_needed is not None
    assert result.prompts_needed > 4
    (single,) = compare_quality(ROWS[:1], (one[:1], one[:1]), [METRICS["length"]])
    assert (single.outcome, single.difference.low) == ("undecided", None)


@pytest.mark.parametrize(
    ("better", "low", "high", "outcome"),
    [
        ("higher", -0.5, 3.0, "held"),
        ("higher", -1.5, 3.0, "undecided"),
        ("higher", -9.0, -1.5, "violated"),
        ("lower", -3.0, 0.5, "held"),
        ("lower", 0.5, 1.5, "undecided"),
        ("lower", 1.5, 2.0, "violated"),
        ("same", -0.5, 0.5, "held"),
        ("same", -0.5, 3.0, "undecided"),
        ("same", 1.5, 3.0, "violated"),
        ("same", -3.0, -1.5, "violated"),
    ],
)
def test_outcomes_by_interval_and_margin(
    better: str, low: float, high: float, outcome: str
) -> None:
    estimate = Estimate((low + high) / 2, low, high, 10)
    assert outcome_of(estimate, 1.0, better) == outcome  # type: ignore[arg-type]


def test_a_margin_of_nothing_holds_only_for_equal_figures() -> None:
    assert outcome_of(Estimate(0, 0, 0, 5), 0.0, "same") == "held"
    assert outcome_of(Estimate(0, -0.1, 0.1, 5), 0.0, "same") == "undecided"


def test_several_samples_of_a_prompt_are_one_pair() -> None:
    one = [[*a, *b] for a, b in zip(replies([10, 20]), replies([30, 40]), strict=True)]
    (result,) = compare_quality(ROWS[:2], (one, one), [METRICS["length"]])
    assert result.reference.num_samples == 2
    assert result.reference.value == 25


def test_a_metric_that_applies_nowhere_is_refused() -> None:
    rows = [WorkloadRow("1", "x")]
    with pytest.raises(UserError, match="applies to no row"):
        compare_quality(rows, (replies([1]), replies([1])), [METRICS["exact-match"]])


def test_margins_of_ones_own() -> None:
    assert metric_of("length=0.2").margin == 0.2
    assert metric_of("length=0.2").is_relative
    assert metric_of("length") is METRICS["length"]
    for text in ("length=much", "length=-1", "length=inf", "lenght"):
        with pytest.raises(UserError):
            metric_of(text)


def test_a_users_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_metrics.py").write_text("def vowels(row, text):\n    return text.count('i')\n")
    monkeypatch.syspath_prepend(tmp_path)
    metric: Metric = metric_of("my_metrics:vowels=0.5")
    (result,) = compare_quality(ROWS, (replies(LENGTHS), replies(LENGTHS)), [metric])
    assert (result.reference.value, result.margin, result.outcome) == (1.0, 0.5, "held")
    with pytest.raises(UserError, match="needs a margin"):
        metric_of("my_metrics:vowels")
    for name in ("my_metrics:none=1", "no_such_module:f=1"):
        with pytest.raises(UserError, match="cannot be imported"):
            metric_of(name)
    sys.modules.pop("my_metrics", None)
