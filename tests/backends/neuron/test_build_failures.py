"""A failure at every call of NxDI: the right error, the log kept, and nothing half-written left."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nxdi_double
import pytest
from nxdi_builds import write_spec
from nxdi_double import Recorder
from nxdi_double.application import GraphError

from neuron_spec.artifacts import open_artifact
from neuron_spec.checkpoints import prepare
from neuron_spec.compiler import compile_model
from neuron_spec.errors import (
    ArtifactError,
    BackendError,
    DependencyError,
    NeuronSpecError,
    SpecError,
    StorageError,
)
from neuron_spec.spec import BuildSpec

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def spec(here: Path) -> BuildSpec:
    spec = write_spec(here, "eagle")
    prepare(spec)
    return spec


def build(spec: BuildSpec, **options: Any) -> Any:
    return compile_model(spec, backend="neuron", **options)


def left(here: Path) -> list[str]:
    return sorted(path.name for path in (here / "build" / "build").iterdir())


CONSTRUCTORS = (
    "NeuronConfig", "OnDeviceSamplingConfig", "load_pretrained_config", "InferenceConfig",
    "FusedSpecNeuronConfig", "NeuronLlamaForCausalLM",
)  # fmt: skip
COMPILING = ("NeuronLlamaForCausalLM.compile", "InferenceConfig.save", "trace", "torch.jit.save")


@pytest.mark.parametrize(
    ("call", "error", "expected", "words"),
    [
        *(
            (call, error, SpecError, "NxD Inference refuses the configuration")
            for call in CONSTRUCTORS
            for error in (ValueError("cp_degree is odd"), AssertionError("cp_degree is odd"))
        ),
        ("NeuronConfig", OSError("no file named config.json"), SpecError, "refuses"),
        ("InferenceConfig", ImportError("libnrt.so"), DependencyError, "does not import: libnrt"),
        *(
            (call, RuntimeError("it broke"), BackendError, "compiling for Neuron failed: it broke")
            for call in COMPILING
        ),
        *((call, FULL, StorageError, "No space left") for call in (*CONSTRUCTORS, *COMPILING)),
        (
            "torch.jit.save", RuntimeError("PytorchStreamWriter failed writing file data/0"),
            StorageError, "No space left",
        ),
        ("trace", PermissionError(errno.EACCES, "Permission denied"), StorageError, "Permission"),
        ("trace", FileNotFoundError(errno.ENOENT, "neuronx-cc"), BackendError, "neuronx-cc"),
        ("no model.pt", RuntimeError(), BackendError, "wrote no target/model.pt"),
        *(
            (call, KeyboardInterrupt(), KeyboardInterrupt, None)
            for call in (*CONSTRUCTORS, *COMPILING)
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_a_failure_at_any_call(
    nxdi: Recorder,
    spec: BuildSpec,
    here: Path,
    call: str,
    error: BaseException,
    expected: type[BaseException],
    words: str | None,
) -> None:
    nxdi.failures[call] = error
    environment = dict(os.environ)
    with pytest.raises(expected, match=words) as caught:
        build(spec)
    assert left(here) == ["artifact.log", "draft"]
    assert dict(os.environ) == environment
    if isinstance(caught.value, NeuronSpecError):
        assert caught.value.exit_code == (1 if expected is BackendError else 2)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("NeuronConfig", ValueError("refused")),
        ("trace", RuntimeError("it broke")),
        ("torch.jit.save", FULL),
        ("torch.jit.save", KeyboardInterrupt()),
    ],
)
def test_a_failure_leaves_the_earlier_artifact(
    nxdi: Recorder, spec: BuildSpec, here: Path, call: str, error: BaseException
) -> None:
    earlier = build(spec)
    nxdi.failures[call] = error
    with pytest.raises((NeuronSpecError, KeyboardInterrupt)):
        build(spec, force=True)
    assert left(here) == ["artifact", "artifact.log", "draft"]
    assert open_artifact(earlier.directory, full=True).manifest == earlier.manifest
    nxdi.failures.clear()
    again = build(spec, force=True)
    assert again.manifest.fingerprint == earlier.manifest.fingerprint


def test_a_shard_that_is_not_written_is_told(nxdi: Recorder, here: Path) -> None:
    spec = write_spec(here, "none", {"save_sharded_checkpoint": True})
    nxdi.failures["NeuronLlamaForCausalLM.shard_weights"] = FULL
    with pytest.raises(StorageError, match="No space left"):
        build(spec)
    assert left(here) == ["artifact.log"]


def test_a_draft_of_its_own_that_fails_leaves_nothing(nxdi: Recorder, here: Path) -> None:
    spec = write_spec(here, "unfused")
    log = "2026 ERROR [neuronx-cc]: [NCC_EOOM001] too large\n"
    nxdi.failures["graph"] = GraphError("token_generation_model", 0, log)
    with pytest.raises(BackendError, match="draft token_generation_model, bucket 128"):
        build(spec)
    assert len(nxdi.arguments_of("trace")) == 2
    assert left(here) == ["artifact.log"]


def test_quantized_weights_that_fail_leave_no_half(nxdi: Recorder, here: Path) -> None:
    text = '[neuron.config]\nquantized = true\nquantized_checkpoints_path = "weights.pt"'
    spec = write_spec(here, "none", text=text)
    nxdi.failures["save_quantized_state_dict"] = RuntimeError("no such dtype")
    with pytest.raises(BackendError, match="no such dtype"):
        build(spec)
    assert sorted(path.name for path in here.glob("*weights*")) == []


@pytest.mark.parametrize(
    ("draft_config", "is_refused"),
    [
        ("", True),
        ("quantized = false", False),
        ('quantized_checkpoints_path = "draft.pt"', False),
    ],
)
def test_a_draft_never_loads_the_targets_quantized_weights(
    nxdi: Recorder, here: Path, draft_config: str, is_refused: bool
) -> None:
    text = (
        '[neuron.config]\nquantized = true\nquantized_checkpoints_path = "weights.pt"\n'
        'draft_model_modules_to_not_convert = ["lm_head"]\n'
    )
    spec = write_spec(here, "unfused", text=f"{text}[neuron.draft_config]\n{draft_config}\n")
    if is_refused:
        with pytest.raises(SpecError, match=r"quantized weights, /.*/weights\.pt"):
            build(spec)
        assert left(here) == ["artifact.log"]
    else:
        assert build(spec).manifest.neuron is not None


# What the compiler says


LOG = "\n".join(
    ["2026 INFO a pass", *(f"2026 INFO pass {n}" for n in range(30)), "2026 ERROR [{code}] {words}"]
)


@pytest.mark.parametrize(
    ("code", "words", "mend"),
    [
        ("F137", "neuronx-cc was forcibly killed", "the host ran out of memory"),
        ("NCC_EOOM001", "exceeds the high-bandwidth memory limit", "does not fit on a core"),
        ("NCC_EVRF009", "exceeds the high-bandwidth memory limit", "raise neuron.tp_degree"),
        ("NCC_EXTP004", "instructions", "too many instructions"),
        ("NCC_EVRF056", "out of bound indices", "max_position_embeddings"),
        ("NCC_EARG001", "Unsupported", "neuron.logical_nc_config"),
        ("F134", "neuronx-cc terminated abnormally", r"leave kernels out of \[neuron.config\]"),
    ],
)
def test_a_graph_that_does_not_compile_is_told_with_its_log(
    nxdi: Recorder, spec: BuildSpec, here: Path, code: str, words: str, mend: str
) -> None:
    log = LOG.format(code=code, words=words)
    nxdi.failures["graph"] = GraphError("fused_speculation_model", 1, log)
    with pytest.raises(BackendError, match=mend) as caught:
        build(spec)
    text = str(caught.value)
    assert "graph: target fused_speculation_model, bucket 256" in text
    assert f"[{code}] {words}" in text and "pass 29" in text and "a pass" not in text
    assert "tp_degree 4" in text and "context_encoding_buckets [32, 64]" in text
    kept = here / "build" / "build" / "artifact.log"
    assert f"log: {kept}" in text and "neff-cache first" in text
    content = kept.read_text()
    assert "==> fused_speculation_model/_tp0_bk1/log-neuron-cc.txt" in content
    assert log in content and "a line of NxD" in content


def test_a_full_disk_in_the_compilers_words(nxdi: Recorder, spec: BuildSpec, here: Path) -> None:
    log = "ERROR OSError: [Errno 28] No space left on device"
    nxdi.failures["graph"] = GraphError("context_encoding_model", 0, log)
    with pytest.raises(StorageError, match="free disk space"):
        build(spec)
    assert left(here) == ["artifact.log", "draft"]


# Without the packages


def test_without_neuron_packages_nothing_begins(spec: BuildSpec, here: Path) -> None:
    with pytest.raises(DependencyError) as caught:
        build(spec)
    text = str(caught.value)
    assert "neuronx-distributed-inference: absent" in text and "--dry-run" in text
    assert left(here) == ["draft"]


@pytest.mark.parametrize(
    ("version", "state"), [("0.1.0", "too old"), ("0.7.1", "too old"), ("0.9.1", None)]
)
def test_an_old_package_is_told(
    spec: BuildSpec, here: Path, monkeypatch: pytest.MonkeyPatch, version: str, state: str | None
) -> None:
    versions = {**nxdi_double.VERSIONS, "neuronx-distributed-inference": version}
    nxdi_double.install(monkeypatch, here / "site", versions)
    if state is None:
        assert build(spec).manifest.libraries["neuronx-distributed-inference"] == version
        return
    with pytest.raises(DependencyError, match=f"inference {version}: {state}"):
        build(spec)


def test_a_class_that_this_nxdi_lacks_is_told(
    nxdi: Recorder, spec: BuildSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["neuronx_distributed_inference.models.llama.modeling_llama"]
    monkeypatch.delattr(module, "NeuronLlamaForCausalLM")
    with pytest.raises(DependencyError, match="has no NeuronLlamaForCausalLM"):
        build(spec)


# Killed


KILLED = """
import os, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
import nxdi_double, pytest
from nxdi_double import application
from neuron_spec.compiler import compile_model
from neuron_spec.spec import load_spec
nxdi_double.install(pytest.MonkeyPatch(), Path("site"))
def stop(folder, tag, bucket):
    if bucket:
        Path("reached").touch()
        time.sleep(60)
application._fail_at = stop
compile_model(load_spec("build.toml"), backend="neuron")
"""


def test_a_killed_build_is_no_artifact_and_is_cleared_by_the_next(
    spec: BuildSpec, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = str(Path(nxdi_double.__file__).parents[1])
    process = subprocess.Popen([sys.executable, "-c", KILLED.format(tests=tests)], cwd=here)
    deadline = time.monotonic() + 60
    while not (here / "reached").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    leftovers = [name for name in left(here) if ".partial-" in name]
    assert len(leftovers) == 1 and "artifact" not in left(here)
    for folder in (here / "build" / "build" / leftovers[0], here / "build" / "build" / "artifact"):
        with pytest.raises(ArtifactError):
            open_artifact(folder)
    nxdi_double.install(monkeypatch, here / "site-packages")
    build(spec)
    assert left(here) == ["artifact", "artifact.log", "draft"]
