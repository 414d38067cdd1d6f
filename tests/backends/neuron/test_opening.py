"""Opening what was compiled: NxDI's objects are made again, and loaded from the artifact."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nxdi_double
import pytest
from nxdi_builds import DRAFTS, write_spec
from nxdi_double import Recorder

from neuron_spec.artifacts import Artifact, open_artifact
from neuron_spec.backends import get_backend
from neuron_spec.backends.neuron.leftovers import forget_others
from neuron_spec.checkpoints import prepare
from neuron_spec.compiler import compile_model
from neuron_spec.errors import ArtifactError, BackendError, DependencyError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; what opening sets in the environment goes with the test."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("NEURON_")]:
        del os.environ[name]
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def compiled(folder: Path, way: str, **neuron: Any) -> Artifact:
    spec = write_spec(folder, way, neuron)
    return compile_model(spec, prepare(spec), backend="neuron")


def opened(artifact: Artifact) -> Any:
    return get_backend("neuron").open(open_artifact(artifact.directory))


def _drafts(nxdi: Recorder) -> list[tuple[Any, ...]]:
    """What is changed on the copies that drafts get."""
    configs = [call["neuron_config"] for call in nxdi.arguments_of("InferenceConfig")]
    return [(c.is_eagle_draft, c.speculation_length, c.enable_fused_speculation) for c in configs]


@pytest.mark.parametrize("way", DRAFTS)
def test_every_way_loads_what_it_compiled(nxdi: Recorder, here: Path, way: str) -> None:
    artifact = compiled(here, way)
    settings, changed = nxdi.arguments_of("NeuronConfig"), _drafts(nxdi)
    nxdi.calls.clear()
    speculator = opened(artifact)
    assert (nxdi.arguments_of("NeuronConfig"), _drafts(nxdi)) == (settings, changed)
    loads = [c for c in nxdi.calls if c.name == "NeuronLlamaForCausalLM.load"]
    folders = [Path(c.arguments["compiled_model_path"]) for c in loads]
    roles = ["target", "draft"] if way == "unfused" else ["target"]
    assert folders == [artifact.directory / role for role in roles]
    assert "trace" not in nxdi.names
    assert speculator.limits.vocab_size == 260


def test_a_fused_artifact_leaves_the_next_ones_alone(nxdi: Recorder, here: Path) -> None:
    """Weights are read when they are loaded; so loading meets what compiling does."""
    artifacts = []
    for way, neuron in (("eagle", {"tp_degree": 2}), ("fused", {}), ("none", {})):
        (here / way).mkdir()
        spec = write_spec(here / way, way, neuron)
        prepared = prepare(spec, here / way / "prepared")
        artifacts.append(compile_model(spec, prepared, here / way / "artifact", backend="neuron"))
    for artifact in artifacts:
        opened(artifact)
    loads = [call.owner for call in nxdi.calls if call.name == "NeuronLlamaForCausalLM.load"]
    assert [load.neuron_config.enable_fused_speculation for load in loads] == [True, True, False]


def test_groups_of_ranks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = ModuleType("attention_process_groups")
    attention._ATTENTION_CP_GROUP = object()  # type: ignore[attr-defined]
    attention.other = 1  # type: ignore[attr-defined]
    name = "neuronx_distributed_inference.modules.attention.attention_process_groups"
    monkeypatch.setitem(sys.modules, name, attention)
    forget_others(type("Application", (), {})())
    assert vars(attention)["_ATTENTION_CP_GROUP"] is None
    assert attention.other == 1 and not hasattr(attention, "_ATTENTION_DP_GROUP")


def test_the_variables_of_the_compile_are_set_and_stay(nxdi: Recorder, here: Path) -> None:
    artifact = compiled(here, "none")
    assert "NEURON_LOGICAL_NC_CONFIG" not in os.environ
    opened(artifact)
    assert os.environ["NEURON_LOGICAL_NC_CONFIG"] == "2"


def test_shards_are_loaded_without_the_checkpoint(nxdi: Recorder, here: Path) -> None:
    artifact = compiled(here, "eagle", save_sharded_checkpoint=True)
    for path in (here / "target", here / "build/build/draft"):
        (path / "model.safetensors").unlink()
    nxdi.calls.clear()
    opened(artifact)
    assert "NeuronLlamaForCausalLM.load" in nxdi.names


def test_what_was_not_compiled_for_neuron_is_refused(nxdi: Recorder, here: Path) -> None:
    spec = write_spec(here, "none")
    artifact = compile_model(spec)
    with pytest.raises(ArtifactError, match="nothing in it was compiled for Neuron"):
        opened(artifact)


def test_an_environment_against_the_compile_is_refused(
    nxdi: Recorder, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = compiled(here, "none")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    with pytest.raises(ArtifactError, match="NEURON_LOGICAL_NC_CONFIG"):
        opened(artifact)


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        ("NeuronConfig", ValueError("refused"), BackendError),
        ("NeuronConfig", ImportError("libnrt.so"), DependencyError),
        ("NeuronLlamaForCausalLM", RuntimeError("refused"), BackendError),
        ("NeuronLlamaForCausalLM.load", RuntimeError("no device"), BackendError),
    ],
)
def test_a_failure_is_ours(
    nxdi: Recorder, here: Path, call: str, error: Exception, expected: type[Exception]
) -> None:
    artifact = compiled(here, "none")
    nxdi.failures[call] = error
    with pytest.raises(expected, match=str(error)):
        opened(artifact)


def test_another_release_than_the_compiles_is_refused(
    nxdi: Recorder, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = compiled(here, "none")
    sys.path.remove(str(here / "site-packages"))
    nxdi_double.install(
        monkeypatch, here / "other", {**nxdi_double.VERSIONS, "neuronx-cc": "2.25.1"}
    )
    with pytest.raises(ArtifactError, match=r"neuronx-cc: 2\.25\.1, compiled with 2\.24"):
        opened(artifact)
