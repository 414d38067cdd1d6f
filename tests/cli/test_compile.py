"""`compile`: kept or compiled and why, dry runs, and builds for Neuron against NxDI's double."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nxdi_double
import pytest
import tiny
from nxdi_builds import write_spec
from nxdi_double.application import GraphError

import neuron_spec.cli.main as program
from neuron_spec.cli.common import progress_bars

COMPILE = Path(__file__).parents[2] / "compile"


@dataclass(frozen=True)
class Result:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`main` with these arguments in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEURON_CC_FLAGS", raising=False)

    def call(*arguments: str | Path) -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["neuron-spec", *map(str, arguments)])
        monkeypatch.setattr(program.signal, "signal", lambda number, handler: None)
        with pytest.raises(SystemExit) as caught:
            program.main()
        captured = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Result(caught.value.code, captured.out, captured.err)

    return call


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> Path:
    """The current one, with an EAGLE build for Neuron that is prepared."""
    write_spec(tmp_path, "eagle")
    assert run("prepare", "build.toml").exit_code == 0
    return tmp_path


def files_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


# Kept or compiled, and why


def test_the_reason_is_told_before_and_in_json(run: Run, folder: Path) -> None:
    first = run("compile", "build.toml", "--json")
    assert first.json["cache"] == {"hit": False, "reason": "no artifact there yet"}
    assert run("compile", "build.toml", "--json").json["cache"] == {
        "hit": True, "reason": "nothing changed",
    }  # fmt: skip
    kept = run("compile", "build.toml")
    assert "(kept: nothing changed)" in kept.out and kept.err == ""
    text = (folder / "build.toml").read_text()
    (folder / "build.toml").write_text(
        text.replace('"max_total_tokens" = 120', '"max_total_tokens" = 100').replace(
            "max_total_tokens = 120", "max_total_tokens = 100"
        )
    )
    changed = run("compile", "build.toml")
    assert changed.err.startswith("compiling: shape.max_total_tokens 120 -> 100 changed")


# For Neuron


@pytest.fixture
def nxdi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> nxdi_double.Recorder:
    return nxdi_double.install(monkeypatch, tmp_path / "site-packages")


def test_a_build_for_neuron(run: Run, nxdi: nxdi_double.Recorder, folder: Path) -> None:
    result = run("compile", "build.toml", "--backend", "neuron")
    assert result.exit_code == 0
    log = folder / "build" / "build" / "artifact.log"
    assert result.err.startswith(f"compiling: no artifact there yet\n  log: {log}\n")
    assert "target graphs: 4 of 4 after " in result.err and "a line of" not in result.err
    assert log.is_file()
    assert "artifact: build/build/artifact" in result.out
    shown = run("inspect", "build/build/artifact").out
    assert "4 graphs for trn2.3xlarge, SDK 2.29, tp_degree 4, batch 1" in shown
    assert "links to the weights" in shown and "pools" in shown
    manifest = run("inspect", "build/build/artifact", "--json").json
    assert manifest["compatibility"] in shown


def test_a_failure_is_one_message_with_the_log(
    run: Run, nxdi: nxdi_double.Recorder, folder: Path
) -> None:
    log = "ERROR [NCC_EOOM001] exceeds the high-bandwidth memory limit"
    nxdi.failures["graph"] = GraphError("context_encoding_model", 1, log)
    result = run("compile", "build.toml", "--backend", "neuron")
    assert result.exit_code == 1 and "Traceback" not in result.err
    assert "graph: target context_encoding_model, bucket 64" in result.err
    assert "mend: the graph does not fit on a core" in result.err


def test_without_the_packages_it_says_how_to_get_them(run: Run, folder: Path) -> None:
    before = files_in(folder)
    result = run("compile", "build.toml", "--backend", "neuron")
    assert result.exit_code == 2 and "neuronx-distributed-inference: absent" in result.err
    assert files_in(folder) == before


def test_an_artifact_of_other_packages_is_inspected_and_not_opened(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        nxdi_double.install(patch, tmp_path / "site-packages")
        assert run("compile", "build.toml", "--backend", "neuron").exit_code == 0
    assert run("inspect", "build/build/artifact").exit_code == 0
    refused = run("generate", "build/build/artifact", "hi")
    assert refused.exit_code == 2
    assert "neuronx-cc: not installed here, compiled with 2.24" in refused.err


# Dry runs


def test_a_dry_run_shows_everything_and_writes_nothing(run: Run, folder: Path) -> None:
    before = files_in(folder)
    result = run("compile", "build.toml", "--backend", "neuron", "--dry-run")
    assert result.exit_code == 0 and files_in(folder) == before
    for text in (
        "would be compiled: no artifact there yet",
        "target: trace and compile 4 graphs, write target/model.pt",
        "target context_encoding_model: 32, 64",
        "target fused_speculation_model: 128, 256",
        "NEURON_PLATFORM_TARGET_OVERRIDE=trn2",
        "speculation_length = 4",
        f"log: {folder / 'build' / 'build' / 'artifact.log'}",
    ):
        assert text in result.out, text


def test_a_dry_run_as_json_says_the_same(run: Run, folder: Path) -> None:
    data = run("compile", "build.toml", "--backend", "neuron", "--dry-run", "--json").json
    assert data["artifact"] == "build/build/artifact" and data["missing_models"] == {}
    assert data["cache"] == {"hit": False, "reason": "no artifact there yet"}
    assert data["graphs"]["target fused_speculation_model"] == [128, 256]
    config = run("check", "build.toml", "--show-config", "--json").json
    assert data["nxdi_config"] == config


@pytest.mark.parametrize("backend", ["reference", "neuron"])
def test_a_dry_run_foretells_what_a_run_says(
    run: Run, nxdi: nxdi_double.Recorder, folder: Path, backend: str
) -> None:
    options = ("compile", "build.toml", "--backend", backend, "--json")
    for _ in range(2):
        foretold = run(*options, "--dry-run").json["cache"]
        assert run(*options).json["cache"] == foretold
    assert foretold["hit"]
    assert run(*options, "--dry-run", "--force").json["cache"]["reason"] == "--force"


def test_a_dry_run_tells_errors_after_the_rest(run: Run, tmp_path: Path) -> None:
    write_spec(tmp_path, "eagle")
    result = run("compile", "build.toml", "--backend", "neuron", "--dry-run")
    assert result.exit_code == 2 and "draft-unprepared" in result.err
    assert "fused_speculation_model" in result.out


def test_a_dry_run_without_the_models_downloads_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spec = COMPILE / "llama-3.3-70b-model.trn2.toml"
    result = run("compile", spec, "--backend", "neuron", "--dry-run")
    assert result.exit_code == 0
    assert "not here: target meta-llama/Llama-3.3-70B-Instruct, draft meta-llama" in result.out
    assert "trace and compile 8 graphs" in result.out


def test_a_dry_run_of_what_neuron_cannot_do(run: Run, tmp_path: Path) -> None:
    write_spec(tmp_path, "ngram", text='[verification]\nrule = "greedy"')
    path = tmp_path / "build.toml"
    path.write_text(path.read_text().replace('"ngram"', '"early-exit"'))
    result = run("compile", "build.toml", "--backend", "neuron", "--dry-run")
    assert result.exit_code == 2 and "early-exit" in result.err
    assert result.out == ""


DRY = """
import sys
from neuron_spec.cli.main import cli
cli(sys.argv[1:], standalone_mode=False)
unwanted = {"torch", "transformers", "neuronx_distributed_inference"} & set(sys.modules)
assert not unwanted, unwanted
"""


def test_a_dry_run_needs_neither_torch_nor_nxdi(folder: Path) -> None:
    arguments = ["compile", "build.toml", "--backend", "neuron", "--dry-run"]
    process = subprocess.run(
        [sys.executable, "-c", DRY, *arguments], cwd=folder, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert "would be compiled" in process.stdout


# Progress on a terminal while a compiler's output goes elsewhere


BARS = """
import os
from pathlib import Path
from neuron_spec.backends.neuron.output import output_into
from neuron_spec.cli.common import progress_bars
with progress_bars() as progress, output_into(Path("log")):
    progress("target graphs", 0, 4)
    os.write(2, b"noise of a compiler\\n")
    print("noise of a library")
    progress("target graphs", 3, 4)
"""


def test_bars_reach_the_terminal_past_the_redirection(tmp_path: Path) -> None:
    leader, follower = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", BARS], cwd=tmp_path, env=environment,
        stdin=follower, stdout=follower, stderr=follower,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:  # the program has ended
        pass
    os.close(leader)
    assert process.wait() == 0
    assert b"target graphs" in shown and b"noise" not in shown
    assert (tmp_path / "log").read_text() == "noise of a compiler\nnoise of a library\n"


def test_without_a_terminal_there_is_a_line_for_every_graph(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", BARS], cwd=tmp_path, capture_output=True, text=True
    )
    lines = process.stderr.splitlines()
    assert process.returncode == 0 and process.stdout == ""
    assert [line.partition(" after ")[0] for line in lines] == [
        "target graphs: 0 of 4", "target graphs: 3 of 4",
    ]  # fmt: skip


def test_bytes_are_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as progress:
        progress("digest model.safetensors", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_cpu_build_shows_its_phases_too(run: Run, tmp_path: Path) -> None:
    tiny.write_target(tmp_path / "target")
    tiny.write_spec(
        tmp_path / "alone.toml",
        target={"model": "target"},
        shape={"max_prompt_tokens": 8, "max_total_tokens": 16},
    )
    result = run("compile", "alone.toml", "--dry-run")
    assert result.exit_code == 0 and "1. load target" in result.out
    assert "graphs" not in result.out and not (tmp_path / "build").exists()
