"""`tests/benchmarks/graphs.py`: its arithmetic, the pass it compiles, and a run on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tiny
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import graphs
from graph_passes import passes
from graph_passes.passes import WAYS, Case
from graph_passes.worker import NUM_PASSES, answer
from graphs import Measured, told_of

from neuron_spec.backends.reference import linear


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tied head: one tensor in two places."""
    return tiny.write_target(tmp_path_factory.mktemp("target"), tie_word_embeddings=True)


def case(model: Path, folder: Path, dtype: str = "float32") -> Case:
    return Case(model, folder, dtype, (1, 4), 64)


def test_times_are_compared_round_by_round() -> None:
    ours = Measured(10.0, 0.5, 100, {1: [0.001, 0.002, 0.004]}, {1: [5]})
    own = Measured(30.0, 3.0, 900, {1: [0.002, 0.002, 0.002]}, {1: [6]})
    told = told_of(own, ours)["passes"][1]
    assert told["ms"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert told["over_kernels"] == {"median": 1.0, "low": 0.5, "high": 2.0}
    assert told["same_ids"] is False
    assert told_of(ours, ours)["passes"][1]["over_kernels"]["median"] == 1.0


def test_a_graph_is_the_kernels_pass(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token, and several at once after them."""
    monkeypatch.setattr(linear, "_can_pack", linear._can_pack)  # is put back after
    given = case(model, tmp_path)
    modules = {rows: passes._exported(given, rows).module() for rows in given.rows}
    run, ours = passes._of_graphs(given, modules), WAYS["operators"](given)
    with torch.no_grad():
        for rows, position in ((1, 0), (1, 1), (4, 2), (1, 6), (4, 7)):
            assert torch.equal(run(rows, position), ours(rows, position)), (rows, position)


def test_weights_are_the_modules_own_and_each_is_there_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_can_pack", lambda dtype: False)
    target = passes._target(case(model, tmp_path))
    weights = [passes._get(*place) for place in passes._places(target)]
    buffers = list(passes.Pass(target).buffers())
    assert {id(buffer) for buffer in buffers} == {id(weight) for weight in weights}
    assert len(buffers) == len(weights) - 1  # embedding and head


def test_an_answer_has_every_pass(model: Path, tmp_path: Path) -> None:
    told = answer(WAYS["operators"](case(model, tmp_path)), 4, 64)
    assert len(told["seconds"]) == NUM_PASSES and min(told["seconds"]) > 0
    assert len(told["ids"]) == 4


def test_a_run(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A way that cannot be compiled is listed with the reason."""
    path = tmp_path / "run.json"
    arguments = ["--model", str(model), "--rounds", "2", "--ways", "operators", "AOTInductor"]
    monkeypatch.setenv("CXX", "no-such-compiler")  # Inductor's; ours goes on to the next one
    monkeypatch.setattr(
        sys, "argv", ["graphs.py", *arguments, "--folder", str(tmp_path), "--json", str(path)]
    )
    assert graphs.main() == 0
    report = json.loads(path.read_text())
    assert list(report["ways"]) == ["kernels", "operators"]
    assert list(report["absent"]) == ["AOTInductor"]
    for told in report["ways"].values():
        assert all(taken["same_ids"] for taken in told["passes"].values())
        assert all(taken["ms"]["median"] > 0 for taken in told["passes"].values())
    assert report["ways"]["kernels"]["num_bytes"] > 10_000  # the library
    printed = capsys.readouterr().out
    assert "over kernels" in printed and "AOTInductor: " in printed
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["torch.compile", "AOTInductor"])
def test_what_pytorch_compiles_gives_the_same(
    way: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--model", str(model), "--rounds", "1", "--rows", "1", "3", "--ways", way]
    path = tmp_path / "run.json"
    monkeypatch.setattr(sys, "argv", ["graphs.py", *arguments, "--json", str(path)])
    assert graphs.main() == 0
    told = json.loads(path.read_text())["ways"][way]
    assert all(taken["same_ids"] for taken in told["passes"].values())
    assert told["ready_s"] < told["built_s"]
