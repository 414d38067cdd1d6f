"""The parts of a build: variables, graphs, output, progress."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nxdi_builds import DRAFTS, write_spec
from nxdi_double import Recorder

from neuron_spec.backends.neuron.config import NxdiConfig, render
from neuron_spec.backends.neuron.environment import (
    build_variables,
    deciding_variables,
    device_variables,
    variables_set,
)
from neuron_spec.backends.neuron.facts import CheckpointFacts, DraftFacts, TargetFacts
from neuron_spec.backends.neuron.failures import failed_graph
from neuron_spec.backends.neuron.families import LLAMA
from neuron_spec.backends.neuron.graph_list import graphs_of, planned_graphs
from neuron_spec.backends.neuron.objects import make_application
from neuron_spec.backends.neuron.output import last_lines, output_into
from neuron_spec.backends.neuron.progress import Counted, watched
from neuron_spec.backends.neuron.reading import facts_of
from neuron_spec.backends.neuron.recorded import recorded_config
from neuron_spec.backends.neuron.settings import Setting
from neuron_spec.checkpoints import prepare
from neuron_spec.errors import ArtifactError
from neuron_spec.platforms.instances import INSTANCES


def config_of(**settings: Any) -> NxdiConfig:
    defaults = {
        "tp_degree": 4, "logical_nc_config": 2, "batch_size": 1, "seq_len": 256,
        "max_context_length": 64, "save_sharded_checkpoint": False,
    }  # fmt: skip
    merged = {**defaults, **settings}
    return NxdiConfig(LLAMA, {name: Setting(value) for name, value in merged.items()})


# Variables


@pytest.mark.parametrize(
    ("instance", "platform"),
    [
        ("inf2.48xlarge", "inf2"), ("trn1.32xlarge", "trn1"), ("trn1n.32xlarge", "trn1n"),
        ("trn2.3xlarge", "trn2"), ("trn2u.48xlarge", "trn2"),
    ],
)  # fmt: skip
def test_the_platform_is_the_instances(instance: str, platform: str) -> None:
    variables = device_variables(config_of(), instance)
    assert variables["NEURON_PLATFORM_TARGET_OVERRIDE"] == platform
    assert variables["NEURON_LOGICAL_NC_CONFIG"] == "2"


def test_every_known_instance_has_a_platform_of_nxdis() -> None:
    for name in INSTANCES:
        platform = device_variables(config_of(), name)["NEURON_PLATFORM_TARGET_OVERRIDE"]
        assert platform in ("inf2", "trn1", "trn1n", "trn2", "trn3")


@pytest.mark.parametrize(
    ("settings", "is_fp8"),
    [
        ({}, False),
        ({"quantized": True, "quantization_dtype": "int8"}, False),
        ({"quantized": True, "quantization_dtype": "f8e4m3"}, True),
        ({"kv_cache_quant": True}, True),
    ],
)
def test_fp8_needs_two_variables(settings: dict[str, Any], is_fp8: bool) -> None:
    variables = device_variables(config_of(**settings), "trn2.3xlarge")
    assert ("UNSAFE_FP8FNCAST" in variables, "XLA_HANDLE_SPECIAL_SCALAR" in variables) == (
        is_fp8, is_fp8,
    )  # fmt: skip


def test_only_what_decides_is_taken_from_outside(tmp_path: Path) -> None:
    given = {"NEURON_CC_FLAGS": "-O1", "NEURON_RT_NUM_CORES": "4", "PATH": "/bin"}
    assert deciding_variables(given) == {"NEURON_CC_FLAGS": "-O1"}
    assert deciding_variables({"NEURON_CC_FLAGS": ""}) == {}
    made = build_variables(config_of(), "trn2.3xlarge", cache=tmp_path, given=given)
    assert made["NEURON_COMPILE_CACHE_URL"] == str(tmp_path) and "PATH" not in made


def test_the_environment_is_as_before_whatever_was_set_inside() -> None:
    before = dict(os.environ)
    with pytest.raises(ValueError, match="x"), variables_set({"NEURON_TEST": "1", "PATH": ""}):
        os.environ["NEURON_OTHER"] = "2"
        raise ValueError("x")
    assert dict(os.environ) == before


# Graphs


@pytest.mark.parametrize(
    ("settings", "prompts", "decoding"),
    [
        ({}, (64,), ("token_generation_model", (256,))),
        (
            {"context_encoding_buckets": [32, 64], "token_generation_buckets": [128, 256]},
            (32, 64), ("token_generation_model", (128, 256)),
        ),
        ({"speculation_length": 4}, (64,), ("speculation_model", (256,))),
        (
            {"speculation_length": 4, "enable_fused_speculation": True},
            (64,), ("fused_speculation_model", (256,)),
        ),
        (
            {"is_medusa": True, "medusa_speculation_length": 5,
             "token_generation_buckets": [128, 256]},
            (64,), ("medusa_speculation_model", (256,)),
        ),
        (
            {"token_generation_batches": [1, 2], "batch_size": 4,
             "token_generation_buckets": [128, 256]},
            (64,),
            ("token_generation_model",
             ((4, 128), (4, 256), (2, 128), (2, 256), (1, 128), (1, 256))),
        ),
        (
            {"is_prefix_caching": True, "prefix_buckets": [32], "context_encoding_buckets": [64]},
            ((64, 0), (64, 32)), ("token_generation_model", ((1, 256),)),
        ),
    ],
)  # fmt: skip
def test_planned_graphs(settings: dict[str, Any], prompts: Any, decoding: Any) -> None:
    name, buckets = decoding
    assert planned_graphs(config_of(**settings)) == {
        "target context_encoding_model": prompts, f"target {name}": buckets,
    }  # fmt: skip


@pytest.mark.parametrize("way", DRAFTS)
def test_the_plan_is_what_the_application_has(
    nxdi: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = write_spec(tmp_path, way)
    prepared = prepare(spec)
    config = render(spec, facts_of(spec, prepared.target, prepared.draft))
    applications = make_application(config, prepared.target, prepared.draft)
    found: dict[str, Any] = {}
    for role, application in applications.by_role.items():
        found |= graphs_of(role, application)
    assert found == planned_graphs(config)


@pytest.mark.parametrize("way", DRAFTS)
def test_the_recorded_configuration_is_the_rendered_one(tmp_path: Path, way: str) -> None:
    spec = write_spec(tmp_path, way)
    rendered = render(spec, CheckpointFacts(TargetFacts("llama"), DraftFacts("llama"))).as_dict()
    assert recorded_config(rendered).as_dict() == {**rendered, "reasons": {}}


def test_a_class_of_another_version_is_told() -> None:
    record = config_of().as_dict()
    record["model_class"]["__name__"] = "NeuronOtherForCausalLM"
    with pytest.raises(ArtifactError, match="NeuronOtherForCausalLM"):
        recorded_config(record)


# Output


def test_all_output_goes_into_the_log_and_nothing_after_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "new" / "build.log"
    with output_into(log):
        sys.stdout.write("python out\n")
        sys.stderr.write("python err\n")
        os.write(1, b"descriptor out\n")
        subprocess.run(
            [sys.executable, "-c", "import os; os.write(2, b'child err\\n')"], check=True
        )
        logging.getLogger("Neuron").warning("logged")
    sys.stdout.write("after\n")
    lines = log.read_text().splitlines()
    assert lines[:4] == ["python out", "python err", "descriptor out", "child err"]
    assert capfd.readouterr().out == "after\n"


def test_a_logger_made_in_the_block_goes_on_behind_it(tmp_path: Path) -> None:
    """As NxD's, whose handler keeps the stream that it found; a process, since pytest has streams
    of its own."""
    program = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from neuron_spec.backends.neuron.output import output_into\n"
        "with output_into(Path('log')):\n"
        "    handler = logging.StreamHandler(sys.stdout)\n"
        "    handler.emit(logging.makeLogRecord({'msg': 'inside'}))\n"
        "    print('no line end', end='')\n"
        "handler.emit(logging.makeLogRecord({'msg': 'behind'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("behind\n", "")
    assert (tmp_path / "log").read_text() == "inside\nno line end"


def test_output_comes_back_after_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), output_into(tmp_path / "log"):
        raise KeyboardInterrupt
    os.write(2, b"back\n")
    assert capfd.readouterr().err == "back\n"


def test_the_log_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of the last build\n")
    with output_into(log):
        os.write(1, b"of this one\n")
    assert log.read_text() == "of this one\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []), (b"\n \n", []), (b"a\n\nb\nc\n", ["b", "c"]), (b"\xff\n", ["\ufffd"]),
        (b"x" * 100 + b"\nlast\n", ["x" * 10, "last"]),
    ],
)  # fmt: skip
def test_the_last_lines(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    (tmp_path / "log").write_bytes(content)
    assert last_lines(tmp_path / "log", 2, max_bytes=16) == expected
    assert last_lines(tmp_path / "none", 2) == []


# Progress


def test_finished_files_are_told_while_the_block_runs(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    kind = Counted("graphs", tmp_path / "work", "*/graph.neff", 2)

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 60
        while ("graphs", count, 2) not in told:
            assert time.monotonic() < deadline, told
            time.sleep(0.01)

    with watched(lambda *step: told.append(step), kind, Counted("none", tmp_path, "*", 0)):
        wait_for(0)
        (tmp_path / "work" / "a").mkdir(parents=True)
        (tmp_path / "work" / "a" / "graph.neff").touch()
        wait_for(1)
        (tmp_path / "work" / "b").mkdir()
        (tmp_path / "work" / "b" / "graph.neff").touch()
    assert told == [("graphs", count, 2) for count in (0, 1, 2)]


def test_a_failure_ends_the_watch(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        watched(lambda *step: None, Counted("graphs", tmp_path, "*", 1)),
    ):
        raise RuntimeError


# Which graph failed


def graph(work: Path, name: str, log: str | None, *, is_done: bool = False, age: int = 0) -> None:
    folder = work / name
    folder.mkdir(parents=True)
    if log is not None:
        (folder / "log-neuron-cc.txt").write_text(log)
        os.utime(folder / "log-neuron-cc.txt", ns=(10**9 - age, 10**9 - age))
    if is_done:
        (folder / "graph.neff").touch()


def test_the_graph_whose_compiler_says_error_failed(tmp_path: Path) -> None:
    assert failed_graph(tmp_path) is None
    graph(tmp_path, "a/_tp0_bk0", "ERROR earlier", is_done=True)
    graph(tmp_path, "a/_tp0_bk1", "still going")
    graph(tmp_path, "a/_tp0_bk2", None)
    assert failed_graph(tmp_path) == tmp_path / "a/_tp0_bk1"
    graph(tmp_path, "b/_tp0_bk0", "[F137] neuronx-cc was forcibly killed", age=10)
    graph(tmp_path, "b/_tp0_bk1", "ERROR first", age=20)
    assert failed_graph(tmp_path) == tmp_path / "b/_tp0_bk0"
