"""Builds against NxDI's double: what is called, with what, and what is left on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from nxdi_builds import DRAFTS, write_spec
from nxdi_double import VERSIONS, Recorder

from neuron_spec.artifacts import Artifact, open_artifact
from neuron_spec.backends.neuron.config import render
from neuron_spec.backends.neuron.graph_list import planned_graphs
from neuron_spec.backends.neuron.places import Places
from neuron_spec.backends.neuron.reading import facts_here
from neuron_spec.checkpoints import prepare
from neuron_spec.compiler import compile_model
from neuron_spec.spec import BuildSpec

PROMPTS, DECODING = (32, 64), (128, 256)
# Way -> role and sub-model of each application's decoding graph.
DECODERS = {
    "none": ["target token_generation_model"],
    "eagle": ["target fused_speculation_model"],
    "eagle-tree": ["target fused_speculation_model"],
    "eagle3": ["target fused_speculation_model"],
    "fused": ["target fused_speculation_model"],
    "unfused": ["target speculation_model", "draft token_generation_model"],
    "medusa": ["target medusa_speculation_model"],
    "ngram": ["target speculation_model"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("NEURON_", "XLA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compiled(spec: BuildSpec, **options: Any) -> Artifact:
    prepare(spec)
    return compile_model(spec, backend="neuron", **options)


@pytest.mark.parametrize("way", DRAFTS)
def test_every_way_compiles_to_an_artifact(nxdi: Recorder, here: Path, way: str) -> None:
    spec = write_spec(here, way)
    artifact = compiled(spec)
    assert artifact.manifest == open_artifact(artifact.directory, full=True).manifest
    roles = [name.split()[0] for name in DECODERS[way]]
    for role in roles:
        names = sorted(path.name for path in (artifact.directory / role).iterdir())
        assert names == ["model.pt", "neuron_config.json"]
    names = sorted(path.name for path in artifact.directory.iterdir())
    assert names == sorted(["manifest.json", *roles])
    neuron = artifact.manifest.neuron
    assert neuron is not None and neuron.graphs == planned_graphs(render(spec, facts_here(spec)))
    assert [name for name in neuron.graphs if "context" not in name] == DECODERS[way]
    one = way == "medusa"
    assert set(neuron.graphs.values()) == {PROMPTS, (256,) if one else DECODING}


def test_the_calls_are_those_of_nxdis_own_program(nxdi: Recorder, here: Path) -> None:
    """The order of `inference_demo.py: run_inference`."""
    artifact = compiled(write_spec(here, "eagle"))
    assert nxdi.names == [
        "NeuronConfig", "OnDeviceSamplingConfig", "load_pretrained_config", "InferenceConfig",
        "load_pretrained_config", "InferenceConfig", "FusedSpecNeuronConfig",
        "NeuronLlamaForCausalLM", "NeuronLlamaForCausalLM.compile", "InferenceConfig.save",
        "trace", "torch.jit.save",
    ]  # fmt: skip
    target, draft = (str(here / name) for name in ("target", "build/build/draft"))
    paths = [call["model_path_or_name"] for call in nxdi.arguments_of("load_pretrained_config")]
    assert paths == [target, draft]
    [model] = nxdi.arguments_of("NeuronLlamaForCausalLM")
    assert model["model_path"] == target
    [fused] = nxdi.arguments_of("FusedSpecNeuronConfig")
    assert fused["worker_cls"].__name__ == "NeuronLlamaModel"
    assert (fused["draft_model_cls"], fused["draft_model_path"]) == (None, draft)
    assert model["config"].fused_spec_config.draft_config is fused["draft_config"]
    [arguments] = nxdi.arguments_of("NeuronConfig")
    assert artifact.manifest.neuron is not None
    assert arguments == artifact.manifest.neuron.config["neuron_config"]


def test_the_draft_gets_a_changed_copy(nxdi: Recorder, here: Path) -> None:
    compiled(write_spec(here, "eagle"))
    target, draft = (a["neuron_config"] for a in nxdi.arguments_of("InferenceConfig"))
    assert (target.is_eagle_draft, draft.is_eagle_draft) == (False, True)
    assert (target.enable_fused_speculation, draft.enable_fused_speculation) == (True, False)
    assert target.speculation_length == draft.speculation_length == 4
    assert draft.on_device_sampling_config is not target.on_device_sampling_config


def test_an_unfused_draft_is_an_application_of_its_own(nxdi: Recorder, here: Path) -> None:
    artifact = compiled(write_spec(here, "unfused", {"draft_tp_degree": 2}))
    paths = [call["model_path"] for call in nxdi.arguments_of("NeuronLlamaForCausalLM")]
    assert paths == [str(here / "draft"), str(here / "target")]
    compiles = [c for c in nxdi.calls if c.name == "NeuronLlamaForCausalLM.compile"]
    assert [Path(c.arguments["compiled_model_path"]).name for c in compiles] == ["target", "draft"]
    target, draft = (c.owner.neuron_config for c in compiles)
    assert (target.tp_degree, target.world_size, target.speculation_length) == (4, 4, 4)
    assert (draft.tp_degree, draft.world_size, draft.speculation_length) == (2, 2, 0)
    works = [trace["work"] for trace in nxdi.arguments_of("trace")]
    assert len(set(works)) == 2  # NxD empties its own before it begins
    assert (artifact.directory / "draft" / "model.pt").is_file()


def test_medusa_reads_the_folder_that_holds_the_heads(nxdi: Recorder, here: Path) -> None:
    compiled(write_spec(here, "medusa"))
    [model] = nxdi.arguments_of("NeuronLlamaForCausalLM")
    assert Path(model["model_path"]) == here / "build/build/draft"
    assert (here / "build/build/draft" / "medusa_heads.pt").is_file()


def test_another_type_in_the_drafts_settings_is_a_torch_type(nxdi: Recorder, here: Path) -> None:
    text = '[neuron.draft_config]\nattention_dtype = "float16"'
    compiled(write_spec(here, "unfused", text=text))
    draft = nxdi.arguments_of("InferenceConfig")[1]["neuron_config"]
    assert str(draft.attention_dtype) == "torch.float16"


# Environment, cache, work directory, log


def test_the_environment_is_set_for_the_build_only_and_recorded(
    nxdi: Recorder, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")  # against the spec: the spec counts
    monkeypatch.setenv("NEURON_CC_FLAGS", "--verbose=35")
    before = dict(os.environ)
    artifact = compiled(write_spec(here, "eagle"))
    assert dict(os.environ) == before
    [trace] = nxdi.arguments_of("trace")
    cache = str(here / "build" / "build" / "neff-cache")
    ours = {
        "NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
        "NEURON_COMPILE_CACHE_URL": cache, "NEURON_CC_FLAGS": "--verbose=35",
    }  # fmt: skip
    assert {name: trace["environment"][name] for name in ours} == ours
    neuron = artifact.manifest.neuron
    assert neuron is not None and neuron.environment == ours
    assert artifact.manifest.environment == {"NEURON_CC_FLAGS": "--verbose=35"}


@pytest.mark.parametrize("url", ["s3://bucket/cache", "/var/cache", "cache"])
def test_a_cache_of_the_user_stays(
    nxdi: Recorder, here: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", url)
    compiled(write_spec(here, "none"))
    [trace] = nxdi.arguments_of("trace")
    expected = str(here / "cache") if url == "cache" else url
    assert trace["environment"]["NEURON_COMPILE_CACHE_URL"] == expected


def test_the_work_directory_is_the_same_in_every_build_and_goes(nxdi: Recorder, here: Path) -> None:
    """NxD takes its path into the key of compiled graphs."""
    artifact = compiled(spec := write_spec(here, "none"))
    compile_model(spec, backend="neuron", force=True)
    first, second = (Path(trace["work"]) for trace in nxdi.arguments_of("trace"))
    assert first == second and not first.parent.exists()
    assert first.parents[1] == artifact.directory.absolute().parent
    beside = sorted(path.name for path in artifact.directory.parent.iterdir())
    assert beside == ["artifact", "artifact.log"]


def test_two_builds_at_once_do_not_share_a_work_directory(tmp_path: Path) -> None:
    first, second = (Places.of(tmp_path / name, tmp_path / "artifact") for name in ("a", "b"))
    first.log.touch()
    with first.working() as work:
        (work / "target").mkdir(parents=True)
        with second.working() as other:
            assert other == tmp_path / "b" / "work"
        assert (work / "target").is_dir()
        assert Path.cwd() == work  # where NxD writes files of the same names in every build
    assert Path.cwd() == tmp_path
    with second.working() as other:
        assert other == work and not (work / "target").exists()


@pytest.mark.parametrize(
    "ways",
    [
        (("eagle", {}), ("none", {})),
        (("fused", {"tp_degree": 2}), ("eagle", {"tp_degree": 4}), ("unfused", {})),
    ],
)
def test_a_fused_build_leaves_the_next_ones_alone(
    nxdi: Recorder, here: Path, ways: tuple[tuple[str, dict[str, Any]], ...]
) -> None:
    """NxDI's class keeps a prefix for the names of weights and NxD a group of ranks, as the double
    does."""
    for number, (way, neuron) in enumerate(ways):
        folder = here / str(number)
        folder.mkdir()
        spec = write_spec(folder, way, {"save_sharded_checkpoint": True, **neuron})
        shards = compiled(spec).directory / "target" / "weights"
        assert len(list(shards.iterdir())) == neuron.get("tp_degree", 4)


def test_the_log_holds_what_compilers_and_libraries_print(
    nxdi: Recorder, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    artifact = compiled(write_spec(here, "none"))
    log = artifact.directory.with_name("artifact.log").read_text()
    assert log.splitlines() == ["a line of a compiler's process", "a line of NxD"]
    assert capfd.readouterr() == ("", "")


def test_progress_counts_graphs_and_shards(nxdi: Recorder, here: Path) -> None:
    told: list[tuple[str, int, int]] = []
    spec = write_spec(here, "unfused", {"save_sharded_checkpoint": True, "draft_tp_degree": 2})
    compiled(spec, progress=lambda *step: told.append(step))
    last = {label: (done, total) for label, done, total in told if "digest" not in label}
    assert last == {
        "target graphs": (4, 4), "target weights by rank": (4, 4),
        "draft graphs": (4, 4), "draft weights by rank": (2, 2),
    }  # fmt: skip


# Manifest


def test_the_manifest_says_what_was_compiled(nxdi: Recorder, here: Path) -> None:
    spec = write_spec(here, "eagle")
    manifest = compiled(spec).manifest
    assert manifest.backend == "neuron" and manifest.spec == spec.model_dump(mode="json")
    assert VERSIONS.items() <= manifest.libraries.items()
    assert manifest.libraries.keys() - VERSIONS.keys() == {"torch", "transformers", "python"}
    neuron = manifest.neuron
    assert neuron is not None
    assert (neuron.instance, neuron.sdk, neuron.tp_degree) == ("trn2.3xlarge", "2.29", 4)
    assert (neuron.logical_nc_config, neuron.batch_size) == (2, 1)
    expected = render(spec, facts_here(spec)).as_dict()
    assert neuron.config == json.loads(json.dumps(expected))
    assert [file.name for file in manifest.files] == [
        "target/model.pt", "target/neuron_config.json",
    ]  # fmt: skip
    assert set(manifest.models) == {"target", "draft"} and not manifest.holds_weights


def test_pools_of_one_build_agree_and_of_another_do_not(nxdi: Recorder, here: Path) -> None:
    spec = write_spec(here, "eagle")
    prefill = compiled(spec, output="prefill").manifest
    draft = spec.draft.model_copy(update={"num_draft_tokens": 2})
    decode = compiled(spec, output="decode").manifest
    other = compiled(spec.model_copy(update={"draft": draft}), output="other").manifest
    assert prefill.compatibility == decode.compatibility != other.compatibility


def test_shards_make_the_checkpoints_dispensable(nxdi: Recorder, here: Path) -> None:
    artifact = compiled(write_spec(here, "none", {"save_sharded_checkpoint": True}))
    shards = sorted(path.name for path in (artifact.directory / "target" / "weights").iterdir())
    assert shards == [f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(4)]
    (here / "target" / "model.safetensors").unlink()
    assert open_artifact(artifact.directory).manifest.holds_weights
    (artifact.directory / "target" / "weights" / shards[2]).unlink()
    with pytest.raises(Exception, match="tp2_sharded_checkpoint.safetensors: missing"):
        open_artifact(artifact.directory)


# Kept, or compiled anew


def test_nothing_changed_compiles_nothing(nxdi: Recorder, here: Path) -> None:
    spec = write_spec(here, "eagle")
    first = compiled(spec)
    nxdi.calls.clear()
    assert compiled(spec).manifest == first.manifest and nxdi.calls == []
    compiled(spec, force=True)
    assert "trace" in nxdi.names


def test_flags_of_the_compiler_decide(
    nxdi: Recorder, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(here, "none")
    first = compiled(spec)
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O1")
    second = compiled(spec)
    assert first.manifest.fingerprint != second.manifest.fingerprint
    assert len(nxdi.arguments_of("trace")) == 2


def test_quantized_weights_are_made_once_and_whole(nxdi: Recorder, here: Path) -> None:
    weights = here / "quantized.pt"
    text = f'[neuron.config]\nquantized = true\nquantized_checkpoints_path = "{weights}"'
    spec = write_spec(here, "none", text=text)
    compiled(spec)
    assert weights.read_bytes() == b"quantized"
    names = nxdi.names
    assert names.index("save_quantized_state_dict") < names.index("trace")
    [model] = nxdi.arguments_of("NeuronLlamaForCausalLM")
    assert model["config"].neuron_config.quantized_checkpoints_path == str(weights)
    compiled(spec, force=True)
    assert nxdi.names.count("save_quantized_state_dict") == 1
