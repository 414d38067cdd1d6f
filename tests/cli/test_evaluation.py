"""`verify`, `bench`, `plan`, `compare` as a process would see them: levels, files, exit codes."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import served
import tiny

import neuron_spec.cli.main as program
from neuron_spec import compile_model, load_spec, prepare
from neuron_spec.bench.run import FORMAT


class Result(NamedTuple):
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str | Path) -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["neuron-spec", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as caught:
            program.main()
        captured = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Result(caught.value.code, captured.out, captured.err)

    yield call
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of four rules; not to be changed."""
    folder = tmp_path_factory.mktemp("evaluation")
    tiny.write_target(folder / "target")
    tiny.write_eagle(folder / "eagle")
    for rule in ("greedy", "rejection", "typical", "sample-match"):
        spec = load_spec(
            tiny.write_spec(
                folder / f"{rule}.toml",
                target={"model": "target"},
                draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 2},
                verification={"rule": rule},
                shape={"max_prompt_tokens": 32, "max_total_tokens": 64, "batch_size": 8},
            )
        )
        compile_model(spec, prepare(spec, folder / "draft"), folder / rule)
    (folder / "prompts.jsonl").write_text('"ab"\n{"prompt": [5, 6, 7], "reference": "x"}\n')
    return folder


@pytest.fixture(scope="module")
def run_file(folder: Path) -> Path:
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.cli.bench import run_bench

    run = run_bench(
        open_artifact(folder / "greedy"),
        prompts=folder / "prompts.jsonl",
        repetitions=2,
        concurrency=(1, 2),
        max_new_tokens=6,
    )
    path = folder / "run.json"
    path.write_text(json.dumps(run))
    return path


# verify


def test_level_1_is_what_the_greedy_rule_is_tested_at(run: Run, folder: Path) -> None:
    arguments = ("verify", folder / "greedy", "--prompts", folder / "prompts.jsonl", "-n", "6")
    result = run(*arguments)
    assert result.exit_code == 0
    assert "level 1 (bitwise identity), rule 'greedy': 2 of 2 identical" in result.out
    assert "at this level: stated" in result.out
    assert "proves nothing" not in result.out
    assert "one prompt proves nothing" in run(*arguments, "--limit", "1").out


def test_a_defect_later_than_a_near_tie_is_counted(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuron_spec.rules import greedy
    from neuron_spec.trees import Tree

    def accept_all(
        tree: Tree, draft_tokens: list[int], best: list[int]
    ) -> tuple[tuple[int, ...], int]:
        return tuple(range(tree.num_nodes)), best[-1]

    monkeypatch.setattr(greedy, "follow", accept_all)
    arguments = ("verify", folder / "greedy", "--prompts", folder / "prompts.jsonl", "-n", "9")
    result = run(*arguments, "--ignore-eos", "--json")
    assert result.exit_code == 1
    data = result.json
    assert (data["level"], data["held"], data["rule"]) == (1, False, "greedy")
    assert data["num_defects"] > 2  # more than one a prompt: what follows the first is compared
    assert all(c["num_compared"] == 9 for c in data["comparisons"])


def test_level_2_is_what_the_rejection_rule_is_tested_at(run: Run, folder: Path) -> None:
    arguments = ("--samples", "60", "-n", "2", "--limit", "1", "--json")
    prompts = ("--prompts", folder / "prompts.jsonl")
    result = run("verify", folder / "rejection", *prompts, *arguments)
    assert result.exit_code == 0
    data = result.json
    assert (data["level"], data["held"]) == (2, True)
    assert data["distribution"]["num_tests"] == 3
    assert 0 < data["distribution"]["detectable_tv"] <= 1
    assert "0.05" in data["distribution"]["samples_for_tv"]
    assert "would have been found with probability 0.8" in data["summary"]
    assert "stated" in data["claim"]


def test_sample_match_is_tested_at_level_1_with_seeds(run: Run, folder: Path) -> None:
    prompts = ("--prompts", folder / "prompts.jsonl", "-n", "12", "--ignore-eos")
    result = run("verify", folder / "sample-match", *prompts, "--seed", "5", "--json")
    assert result.exit_code == 0
    data = result.json
    assert (data["level"], data["temperature"], data["num_identical"]) == (1, 1.0, 2)
    assert "sampled at temperature 1 from seed 5 on" in data["summary"]
    assert "stated" in data["claim"]
    greedy = run("verify", folder / "sample-match", *prompts, "-t", "0", "--json").json
    assert (greedy["level"], greedy["temperature"], greedy["held"]) == (1, 0.0, True)
    # Another rule keeps the distribution only: told apart, and no defect of its own.
    other = run("verify", folder / "rejection", *prompts, "--level", "1", "-t", "1", "--json").json
    assert any("does not state this level" in note for note in other["notes"])
    off = run(
        "verify", folder / "sample-match", *prompts, "--level", "1",
        "--against", f"{folder}/rejection@off", "--json",
    ).json  # fmt: skip
    assert off["num_identical"] == 2  # without speculation every rule samples alike


def test_two_different_systems_are_told_apart_at_level_2(run: Run, folder: Path) -> None:
    """Typical acceptance against the target's own sampling: a defect is none, but it is seen."""
    result = run(
        "verify", folder / "typical", "--prompts", folder / "prompts.jsonl", "--level", "2",
        "--samples", "150", "-n", "3", "--limit", "1", "--against", f"{folder}/rejection@off",
        "-t", "0.2", "--json",
    )  # fmt: skip
    data = result.json
    assert data["systems"]["reference"].endswith("rejection@off")
    assert any("does not state this level" in note for note in data["notes"])
    assert result.exit_code == (0 if data["held"] else 1)


def test_a_rule_that_states_nothing_is_tested_at_level_3(run: Run, folder: Path) -> None:
    arguments = ("--prompts", folder / "prompts.jsonl", "-n", "4", "--ignore-eos")
    result = run("verify", folder / "typical", *arguments, "--metric", "length", "--json")
    data = result.json
    assert (data["level"], data["held"], result.exit_code) == (3, True, 0)
    assert "measured, not stated" in data["claim"]
    assert any("states no equal distribution" in note for note in data["notes"])
    (length,) = data["quality"]
    assert (length["metric"], length["outcome"]) == ("length", "held")
    assert length["difference"]["num_samples"] == 2
    # One prompt has no interval: not held, and said so.
    single = run("verify", folder / "typical", *arguments, "--metric", "length", "--limit", "1")
    assert single.exit_code == 1
    assert "undecided" in single.out
    assert "one prompt proves nothing" in single.out


def test_other_systems_to_compare_with(run: Run, folder: Path) -> None:
    prompts = ("--prompts", folder / "prompts.jsonl", "-n", "5", "--level", "1", "--ignore-eos")
    other = run("verify", folder / "greedy", *prompts, "--against", f"{folder}/rejection@off")
    assert other.exit_code == 0
    alone = tiny.write_spec(
        folder / "alone.toml",
        target={"model": "target"},
        shape={"max_prompt_tokens": 32, "max_total_tokens": 64},
    )
    spec = run("verify", f"{folder}/greedy@on", *prompts, "--against", f"{alone}@off", "--json")
    assert (spec.exit_code, spec.json["num_identical"]) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://127.0.0.1:9/v1",), "cannot be compared with itself"),
        (("{}/greedy", "--body", "3"), "not fields of a request"),
        (("{}/none",), "no such directory"),
        (("{}/greedy", "--against", "http://127.0.0.1:9/v1"), "cannot be reached"),
        (("{}/greedy", "--level", "2"), "verifies greedily"),
        (("{}/greedy", "--level", "3", "--metric", "lenght"), "no such metric"),
        (("{}/greedy", "--level", "3", "--metric", "a.b:c"), "needs a margin"),
        (("{}/rejection", "--samples", "5", "-n", "1"), "too few samples"),
    ],
)
def test_what_verify_refuses(
    run: Run, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    filled = [argument.format(folder) for argument in arguments]
    result = run("verify", *filled, "--prompts", folder / "prompts.jsonl")
    assert result.exit_code == 2
    assert words in result.err
    assert result.out == ""


# bench, plan, compare


def test_bench_at_several_loads_with_a_page(run: Run, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    arguments = ("bench", folder / "greedy", "--prompts", folder / "prompts.jsonl", "-n", "4")
    result = run(*arguments, "--repetitions", "1", "--concurrency", "2,1", "--html", page)
    assert result.exit_code == 0
    assert "identical: yes" in result.out
    assert "first look" in result.out
    assert page.read_text().startswith("<!doctype html>")
    assert "Is decoding the limit?" in page.read_text()
    verdict = tmp_path / "verdict.json"
    checked = run(
        "verify", folder / "greedy", "--prompts", folder / "prompts.jsonl", "-n", "4", "--json"
    )
    verdict.write_text(checked.out)
    run(*arguments, "--repetitions", "1", "--html", page, "--verdict", verdict, "--no-steps")
    assert "Verdict: held" in page.read_text()
    verdict.write_text("{}")
    refused = run(*arguments, "--repetitions", "1", "--html", page, "--verdict", verdict)
    assert refused.exit_code == 2
    assert "not a verdict" in refused.err
    missing = tmp_path / "none" / "report.html"
    assert "no such directory" in run(*arguments, "--html", missing).err
    assert run(*arguments, "--concurrency", "9").exit_code == 2
    for wrong in ("0", "a", "1,,2", ""):
        assert run(*arguments, "--concurrency", wrong).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "either ARTIFACT or --endpoint"),
        (("{}/greedy", "--endpoint", "http://127.0.0.1:9/v1"), "either ARTIFACT or --endpoint"),
        (("{}/greedy", "--off-body", "{{}}"), "options of an endpoint"),
        (("--endpoint", "http://127.0.0.1:9/v1"), "cannot be reached"),
        (("--endpoint", "http://127.0.0.1:9/v1", "--peer", "transformers"), "beside an ARTIFACT"),
        (("--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--body", "["), "not fields"),
    ],
)
def test_what_bench_refuses_of_endpoints(
    run: Run, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = run("bench", *(argument.format(folder) for argument in arguments))
    assert (result.exit_code, result.out) == (2, "")
    assert words in result.err


def test_bench_and_verify_an_endpoint(run: Run, folder: Path, tmp_path: Path) -> None:
    """A server of the greedy artifact, by its address."""
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.serving.app import create_app

    page, file = tmp_path / "page.html", tmp_path / "run.json"
    prompts = ("--prompts", folder / "prompts.jsonl", "-n", "6")
    artifact = open_artifact(folder / "greedy")
    with served.live(create_app(artifact, model_name="tiny")) as live:
        endpoint = f"{live.url}/v1"
        bench = ("bench", "--endpoint", endpoint, *prompts, "--repetitions", "2")
        shown = run(*bench, "--concurrency", "1,2", "--html", page)
        assert shown.exit_code == 0
        told = run(*bench, "--json")
        same = run(
            "verify", f"{endpoint}#tiny", "--against", f"{folder}/greedy@off", *prompts, "--json"
        )
    assert "TTFT ms" in shown.out
    assert "times between chunks" in shown.out
    assert page.read_text().startswith("<!doctype html>")
    loads = {load["way"]: load for load in told.json["loads"]}
    assert loads["on"]["acceptance"]["num_drafted_tokens"] > 0
    assert loads["off"]["acceptance"]["num_drafted_tokens"] == 0  # by the request's own switch
    assert told.json["record"]["rule"]["name"] == "greedy"
    assert same.exit_code == 0
    assert (same.json["level"], same.json["num_identical"], same.json["claim"]) == (1, 2, None)
    assert any("compared by text" in note for note in same.json["notes"])
    file.write_text(told.out)
    assert run("compare", file, file).exit_code == 0
    refused = run("plan", file)
    assert (refused.exit_code, "no step costs" in refused.err) == (2, True)


def test_bench_takes_kinds_of_work(run: Run, folder: Path) -> None:
    result = run("bench", folder / "greedy", "--kinds", "cod")
    assert result.exit_code == 2
    assert "did you mean 'code'?" in result.err
    both = run("bench", folder / "greedy", "--kinds", "code", "--prompts", "x.jsonl")
    assert both.exit_code == 2


def test_a_run_has_its_record(run_file: Path) -> None:
    data = json.loads(run_file.read_text())
    assert data["format"] == FORMAT
    record = data["record"]
    assert record["draft"]["method"] == "eagle"
    assert record["draft"]["num_draft_tokens"] == 2
    assert record["claims"][0]["level"] == "bitwise identity"
    assert set(record["target"]["sha256"]) == {"model.safetensors"}
    assert record["machine"]["device"] == "cpu"
    assert record["options"] == {"max_new_tokens": 6}
    costs = data["step_costs"]
    assert [(c["concurrency"], c["num_positions"]) for c in costs] == [
        (c, n) for c in (1, 2) for n in (1, 2, 3)
    ]
    assert all(cost["draft_s"]["value"] < cost["step_s"]["value"] for cost in costs)
    assert all(0 < cost["verify_s"]["value"] <= cost["step_s"]["value"] for cost in costs)


def test_plan_from_a_run_prints_and_writes(run: Run, folder: Path, run_file: Path) -> None:
    before = (folder / "greedy.toml").read_text()
    result = run("plan", run_file, "--write", folder / "greedy.toml")
    assert result.exit_code == 0
    assert "by_load = [[1, " in result.out
    assert "1. Is decoding the limit?" in result.out
    written = folder / "greedy.planned.toml"
    assert load_spec(written).draft.by_load
    assert (folder / "greedy.toml").read_text() == before
    again = run("plan", run_file, "--write", folder / "greedy.toml")
    assert again.exit_code == 2
    assert "is there already" in again.err
    written.unlink()


def test_plan_chooses_among_runs(run: Run, run_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(run_file.read_text())
    result = run("plan", run_file, "--beside", other, "--json")
    assert result.exit_code == 0
    (load, *_) = result.json["choice"]["loads"]
    assert {row["run"] for row in load["options"]} == {str(run_file), str(other)}
    shown = run("plan", run_file, "--beside", other)
    assert shown.exit_code == 0 and shown.out.count("1 in flight") >= 2
    data = json.loads(other.read_text())
    data["record"]["machine"] = {"processor": "another"}
    other.write_text(json.dumps(data))
    refused = run("plan", run_file, "--beside", other)
    assert refused.exit_code == 2 and "not comparable with" in refused.err
    wrong = run("plan", tmp_path / "x.toml", "--acceptance", run_file, "--beside", other)
    assert wrong.exit_code == 2 and "--beside goes with what was measured" in wrong.err


def test_plan_measures_an_artifact(run: Run, folder: Path) -> None:
    arguments = ("--prompts", folder / "prompts.jsonl", "-n", "4", "--repetitions", "1", "--json")
    data = run("plan", folder / "greedy", *arguments).json
    assert data["largest_concurrency"] == 1
    assert [o["num_draft_tokens"] for o in data["loads"][0]["options"]] == [0, 1, 2]


def test_bench_and_plan_with_the_target_alone(run: Run, folder: Path, tmp_path: Path) -> None:
    paths = {}
    for name, total in (("alone", 64), ("other", 48)):
        target = "target" if name == "alone" else "another"
        if name == "other":
            tiny.write_target(folder / target, seed=7)
        spec = tiny.write_spec(
            folder / f"{name}-off.toml",
            target={"model": target},
            shape={"max_prompt_tokens": 32, "max_total_tokens": total},
        )
        paths[name] = tmp_path / name
        compile_model(load_spec(spec), output=paths[name])
    options = ("--prompts", folder / "prompts.jsonl", "-n", "4", "--repetitions", "1")
    arguments = ("bench", folder / "greedy", "--off", paths["alone"], *options, "--json")
    data = run(*arguments).json
    assert [load["way"] for load in data["loads"]] == ["off", "on"]
    assert data["record"]["off"]["shape"]["max_total_tokens"] == 64
    assert [cost["num_draft_tokens"] for cost in data["step_costs"]] == [0, 1, 2]
    plan = run("plan", folder / "greedy", "--off", paths["alone"], *options)
    assert plan.exit_code == 0 and "by_load = [[1, " in plan.out
    refused = run("bench", folder / "greedy", "--off", paths["other"], *options)
    assert refused.exit_code == 2
    assert "cannot be what speculation is compared with" in refused.err
    assert "target: other weights, of " in refused.err and "machine:" not in refused.err
    for wrong in (folder / "rejection", folder / "none"):
        assert run("bench", folder / "greedy", "--off", wrong, *options).exit_code == 2
    remote = ("bench", "--endpoint", "http://127.0.0.1:9/v1", "--off", paths["alone"])
    assert "it is --off-endpoint" in run(*remote).err


def test_plan_of_a_graph_with_one_draft_length(
    run: Run, folder: Path, run_file: Path, tmp_path: Path
) -> None:
    data = json.loads(run_file.read_text())
    data["record"]["draft"]["always_drafts"] = True
    one = tmp_path / "one.json"
    one.write_text(json.dumps(data))
    result = run("plan", one)
    assert result.exit_code == 0
    assert "by_load = " not in result.out and "one draft length in its graph" in result.out
    refused = run("plan", one, "--write", folder / "greedy.toml")
    assert refused.exit_code == 2
    assert "no by_load to write" in refused.err and "draft.num_draft_tokens" in refused.err
    assert run("plan", one, "--off", folder / "greedy").exit_code == 2
    one.write_text(json.dumps({**data, "step_costs": None}))
    assert "give --off" in run("plan", one).err


def test_plan_from_platform_facts(run: Run, folder: Path, run_file: Path) -> None:
    spec = tiny.write_spec(
        folder / "neuron.toml",
        target={"model": "target", "dtype": "bfloat16"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 2},
        shape={"max_prompt_tokens": 32, "max_total_tokens": 64},
        neuron={"instance": "trn2.48xlarge"},
    )
    arguments = ("plan", spec, "--acceptance", run_file, "--concurrency", "1,4")
    result = run(*arguments)
    assert result.exit_code == 0
    assert "estimated for trn2.48xlarge, TP 1: nothing was measured" in result.out
    assert "note: an estimate, not a measurement" in result.out
    assert "note: one draft length in its graph" in result.out and "by_load = " not in result.out
    other = run(*arguments, "--instance", "trn1.2xlarge", "--json").json
    assert other["estimate"]["instance"] == "trn1.2xlarge"
    assert [load["concurrency"] for load in other["loads"]] == [1, 4]
    for wrong in ((spec,), (run_file, "--acceptance", run_file)):
        assert run("plan", *wrong).exit_code == 2


def test_plan_finds_a_tree(run: Run, folder: Path, run_file: Path, tmp_path: Path) -> None:
    rates, output = tmp_path / "rates.json", tmp_path / "tree.json"
    rates.write_text("[[0.6, 0.2], [0.5, 0.1]]")
    arguments = ("plan", run_file, "--tree", rates, "--nodes", "4", "--json")
    tree = run(*arguments, "--tree-output", output).json["tree"]
    assert tree["paths"] == [[0], [1], [0, 0], [1, 0]]
    assert tree["expected_tokens_per_step"] == pytest.approx(1 + 0.6 + 0.2 + 0.3 + 0.1)
    assert json.loads(output.read_text()) == tree["paths"]
    spec = tiny.write_spec(
        tmp_path / "tree.toml",
        target={"model": str(folder / "target")},
        draft={"method": "eagle", "model": str(folder / "eagle"), "tree": "tree.json"},
    )
    assert len(load_spec(spec).draft.tree) == 4
    assert run("plan", run_file, "--tree", "measure").exit_code == 2
    short = ("--prompts", folder / "prompts.jsonl", "-n", "2", "--repetitions", "1")
    refused = run("plan", folder / "greedy", "--tree", "measure", *short)
    assert refused.exit_code == 2
    assert "drafts a tree" in refused.err


def test_compare_runs(run: Run, run_file: Path, tmp_path: Path) -> None:
    result = run("compare", run_file, run_file)
    assert result.exit_code == 0
    assert result.out.count("no ") >= 2
    data = json.loads(run_file.read_text())
    data["record"]["machine"]["num_threads"] = 77
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data))
    refused = run("compare", run_file, other)
    assert refused.exit_code == 2
    assert "not comparable: machine: num_threads" in refused.out
    assert run("compare", run_file, other, "--json").json["comparable"] is False
    assert run("compare", run_file, tmp_path / "none").exit_code == 2
