"""A run as data: what its figures are made of, and what a comparison refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from bench_runs import RECORD, ROWS, costs, rounds, served

from neuron_spec.bench.charts import TOP, Chart, round_up
from neuron_spec.bench.compare import compare_runs, differences
from neuron_spec.bench.plan import plan_of, read_rank_rates, with_by_load
from neuron_spec.bench.questions import questions_of
from neuron_spec.bench.report import html_report
from neuron_spec.bench.rounds import Round, Rounds
from neuron_spec.bench.run import FORMAT, Run, decode_share, read_run, run_of
from neuron_spec.bench.workload import WorkloadRow, workload_digest
from neuron_spec.errors import UserError
from neuron_spec.metrics.estimates import Estimate
from neuron_spec.spec import load_spec


@pytest.fixture
def run() -> Run:
    result: Run = json.loads(json.dumps(run_of(RECORD, ROWS, rounds(), costs())))
    return result


def test_loads_have_percentiles_throughput_and_acceptance(run: Run) -> None:
    by_way = {(load["way"], load["concurrency"]): load for load in run["loads"]}
    assert len(by_way) == 4
    off, on = by_way["off", 1], by_way["on", 1]
    assert off["throughput_tokens_per_s"]["value"] == pytest.approx(22 / 6 / 1.1**0.5)
    assert off["throughput_tokens_per_s"]["num_samples"] == 2
    assert (off["num_requests"], off["num_output_tokens"]) == (4, 44)
    assert off["total_s"]["p50"]["value"] == pytest.approx(3.1)
    assert off["tpot_s"]["p50"]["value"] == pytest.approx(0.9 * 3.1 / 10)
    assert off["ttft_s"]["p99"]["num_samples"] == 4
    assert off["acceptance_length"] is None
    # A repetition is no new sample: 5 steps of two requests with 5 accepted tokens.
    assert on["acceptance"]["num_steps"] == 5
    assert on["acceptance_length"]["value"] == 2.0
    assert on["acceptance_length"]["num_samples"] == 2


def test_speed_ups_are_ratios_of_one_repetition(run: Run) -> None:
    first = run["speed_ups"][0]
    assert (first["way"], first["concurrency"]) == ("on", 1)
    assert first["throughput"]["value"] == pytest.approx((2.0 * 2.0 / 1.1) ** 0.5)
    assert first["decoding"]["value"] == pytest.approx(2.0)
    assert (first["identical"], first["num_prompts"]) == (2, 2)
    kinds = {kind["kind"]: kind for kind in run["kinds"]}
    assert kinds["code"]["speed_up"]["value"] == pytest.approx(2.0)
    assert kinds["code"]["speed_up"]["low"] is None  # one prompt of this kind
    assert kinds["chat"]["acceptance_length"]["value"] == 1.5
    assert run["prompts"][0]["ratio"] == pytest.approx(2.0)
    assert decode_share(run) == pytest.approx(0.9)


def test_notes_say_what_figures_cannot_prove(run: Run) -> None:
    assert any("2 prompts are a first look" in note for note in run["notes"])
    single = Rounds([Round(w, 2, 0, 1.0, (served(0, 1.0, [1]),)) for w in ("off", "on")])
    notes = run_of(RECORD, ROWS[:1], single, None)["notes"]
    assert any("one prompt proves nothing" in note for note in notes)
    assert any("one repetition" in note for note in notes)
    assert any("8 passes over the prompts a round keep 2" in note for note in notes)


def test_a_run_is_read_back_and_other_files_are_refused(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    assert read_run(path) == run
    for text in ("{}", "[1]", "no", json.dumps({**run, "format": "other"})):
        path.write_text(text)
        with pytest.raises(UserError):
            read_run(path)
    with pytest.raises(UserError):
        read_run(tmp_path / "none.json")
    assert run["format"] == FORMAT


# Comparing


def changed(run: Run, place: str, value: Any) -> Run:
    other = copy.deepcopy(run)
    *parents, last = place.split(".")
    record = other["record"]
    for part in parents:
        record = record[part]
    record[last] = value
    return other


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("target.sha256", {"w": "2"}),
        ("precision", "bfloat16"),
        ("machine.num_threads", 2),
        ("backend", "neuron"),
        ("workload.sha256", "x"),
        ("options.max_new_tokens", 12),
    ],
)
def test_what_makes_figures_incomparable_is_refused_by_name(
    run: Run, place: str, value: Any
) -> None:
    result = compare_runs(run, changed(run, place, value))
    assert not result["comparable"]
    assert result["loads"] == []
    (reason,) = result["forbidding"]
    assert place.split(".")[0] in reason
    assert str(value)[:12] in reason or place == "target.sha256"


@pytest.mark.parametrize(
    ("place", "value"),
    [("draft.num_draft_tokens", 3), ("rule.name", "typical"), ("libraries.torch", "3")],
)
def test_what_is_compared_may_differ_and_is_told(run: Run, place: str, value: Any) -> None:
    forbidding, told = differences(run, changed(run, place, value))
    assert forbidding == []
    assert any(place.split(".")[0] in line and str(value) in line for line in told)


def test_other_claims_are_told(run: Run) -> None:
    other = changed(run, "claims", [{"level": "quality parity", "status": "stated", "source": ""}])
    assert any("do not promise the same" in line for line in differences(run, other)[1])


def test_rounds_of_other_sizes_are_not_compared(run: Run) -> None:
    other = copy.deepcopy(run)
    other["loads"][0]["num_requests"] *= 4
    result = compare_runs(run, other)
    assert result["comparable"]
    assert len(result["loads"]) == 3
    assert any("off, 1 in flight: not compared" in line for line in result["told"])


def test_ratios_between_runs_carry_both_uncertainties(run: Run) -> None:
    same = compare_runs(run, run)
    assert len(same["loads"]) == 4
    off = same["loads"][0]
    assert off["ratio"]["value"] == 1.0
    spread = off["first"]["high"] / off["first"]["value"]
    assert off["ratio"]["high"] == pytest.approx(spread**2**0.5)  # both as wide
    assert off["verdict"] == "no difference beyond the interval"
    faster = copy.deepcopy(run)
    for load in faster["loads"]:
        figures = load["throughput_tokens_per_s"]
        for end in ("value", "low", "high"):
            figures[end] *= 100
    for one, other, words in ((run, faster, "faster"), (faster, run, "slower")):
        (verdict, *_) = (load["verdict"] for load in compare_runs(one, other)["loads"])
        assert verdict == f"the second is {words}"
    for load in faster["loads"]:
        load["throughput_tokens_per_s"]["low"] = None
    assert "no interval" in compare_runs(run, faster)["loads"][0]["verdict"]
    faster["loads"] = []
    assert compare_runs(run, faster)["loads"] == []


# Planning


def test_a_plan_of_a_run(run: Run) -> None:
    plan = plan_of(run)
    # 5 steps: two accept 2, one accepts 1, two nothing.
    tokens = [option.tokens_per_step.value for option in plan.loads[0].options]
    assert tokens == pytest.approx([1, 1.6, 2.0])
    speed_ups = [option.speed_up.value for option in plan.loads[0].options]
    assert speed_ups == pytest.approx([1, 1.6 / 1.2, 2.0 / 1.4])
    assert plan.by_load == ((1, 2), (2, 1))  # 1.6 / 1.4 and 2 / 1.8 at 2 in flight
    questions = questions_of(run, plan)
    assert [item["question"] for item in questions][0] == "Is decoding the limit?"
    assert questions[0]["answer"].startswith("yes: 90%")
    assert "it pays up to the 2 measured" in questions[1]["answer"]
    assert len(questions) == 7


def test_a_tree_is_planned_whole_or_not_at_all(run: Run) -> None:
    tree = changed(run, "draft.tree", [[0], [1]])
    assert [o.num_draft_tokens for o in plan_of(tree).loads[0].options] == [0, 2]


def test_a_run_without_costs_or_drafts_has_no_plan(run: Run) -> None:
    with pytest.raises(UserError, match="no step costs"):
        plan_of({**run, "step_costs": None})
    for prompt in run["prompts"]:
        prompt["acceptance"]["num_drafted_tokens"] = 0
    with pytest.raises(UserError, match="nothing was drafted"):
        plan_of(run)


SPEC = """# a spec
[target]
model = "t"

[draft]   # what proposes
method = "ngram"
by_load = [  # the old plan
  [1, 4],
  [8, 2],
]
num_draft_tokens = 4
[shape]
batch_size = 8
"""


def test_bands_replace_those_of_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text(with_by_load(SPEC, "by_load = [[1, 3], [5, 0]]"))
    spec = load_spec(path)
    assert spec.draft.by_load == ((1, 3), (5, 0))
    assert (spec.draft.num_draft_tokens, spec.shape.batch_size) == (4, 8)
    assert path.read_text().startswith("# a spec\n")
    assert "the old plan" not in path.read_text()
    bare = SPEC[: SPEC.index("by_load")] + "num_draft_tokens = 4\n"
    path.write_text(with_by_load(bare, "by_load = [[1, 3]]"))
    assert load_spec(path).draft.by_load == ((1, 3),)
    with pytest.raises(UserError, match="no \\[draft\\]"):
        with_by_load('[target]\nmodel = "t"\n', "by_load = []")


def test_rank_rates_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text("[[0.5, 0.2], [0.4]]")
    assert read_rank_rates(path) == [[0.5, 0.2], [0.4]]
    for text in ("[]", "{}", "[[0.9, 0.2]]", "[[-0.1]]", '[["a"]]', "[0.5]", "no", "[[true]]"):
        path.write_text(text)
        with pytest.raises(UserError):
            read_rank_rates(path)


# The page


def test_the_page_is_self_contained_and_escapes_what_models_write(run: Run) -> None:
    verdict = {
        "level": 1,
        "level_name": "bitwise identity",
        "held": True,
        "summary": "2 of 2 identical",
        "claim": "claim <i>",
        "notes": ["a note"],
    }
    plan = {"toml": "by_load = [[1, 2]]", "questions": [{"question": "Q?", "answer": "A"}]}
    page = html_report(run, verdict=verdict, plan=plan)
    assert "<title>a &lt;b&gt;: speculation on and off</title>" in page
    assert '<span class="accepted">&lt;x&gt;</span>' in page
    assert "claim &lt;i&gt;" in page
    assert "Verdict: held" in page
    assert "Level 1, bitwise identity: 2 of 2 identical" in page
    assert "Note: a note." in page
    assert "by_load = [[1, 2]]" in page
    for outside in ("http://", "https://", "<script", "<link", "@import", "src="):
        assert outside not in page
    assert page.count("<svg") == 6
    assert '<path class="line s1"' in page.split("Throughput")[0]  # "on" has one colour throughout
    for way in ("prefers-color-scheme: dark", "@media print"):
        assert way in page
    without = html_report({**run, "step_costs": None})
    assert without.count("<svg") == 5
    assert "Verdict" not in without


def test_charts_draw_values_intervals_and_gaps() -> None:
    values = [Estimate(1.0, 0.5, 1.5, 3), None, Estimate(2.0, None, None, 1)]
    chart = Chart(["1", "2", "<"], {"a&b": values}, "y", reference=1.0, is_joined=True)
    svg = chart.svg()
    assert svg.count("<circle") == 2
    assert svg.count('class="interval"') == 1
    assert 'class="reference"' in svg
    assert "&lt;" in svg
    assert "a&amp;b" in svg
    assert "1.000 [0.500, 1.500], n = 3" in svg
    assert Chart(["1"], {"a": values[:1]}, "y").svg().count("<rect") == 1
    assert Chart(["1"], {"a": [None]}, "y").svg() == ""
    wide = Chart(["1"], {"a": [Estimate(1.0, 0.1, 900.0, 2)]}, "y").svg()
    assert ">2</text>" in wide  # the axis ends where the values can still be read
    assert f'V{TOP:.1f}"' in wide


@pytest.mark.parametrize(
    ("value", "top"), [(0.93, 1), (1.0, 1), (1.2, 1.5), (47, 50), (0.021, 0.03), (999, 1000)]
)
def test_axes_end_on_round_numbers(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)


def test_the_digest_of_a_workload_is_that_of_its_prompts() -> None:
    assert workload_digest(ROWS) == workload_digest(list(ROWS))
    assert workload_digest(ROWS) != workload_digest(ROWS[::-1])
    assert workload_digest([WorkloadRow((1, 2), "x")]) == workload_digest(
        [WorkloadRow([1, 2], "x")]
    )
