"""Build spec + checkpoints -> artifact: checked first, whole or not at all, kept if unchanged."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from neuron_spec.artifacts import Artifact, open_artifact
from neuron_spec.backends.reference.build import ReferenceBackend
from neuron_spec.checkpoints import prepare
from neuron_spec.compiler import compile_model, plan_compile
from neuron_spec.errors import ArtifactError, PreflightError, StorageError, UserError
from neuron_spec.files import sha256
from neuron_spec.spec import BuildSpec, claims_of, load_spec
from neuron_spec.spec.guarantees import NUMERICS
from neuron_spec.version import __version__


@pytest.fixture
def prepared_spec(spec: BuildSpec) -> BuildSpec:
    prepare(spec)
    return spec


@pytest.fixture
def compiled(prepared_spec: BuildSpec) -> Artifact:
    return compile_model(prepared_spec)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def built_anew(artifact: Artifact, before: Artifact) -> bool:
    """Also within one second, the resolution of `created_at`."""
    mtimes = [file.mtime_ns for file in (*artifact.manifest.files, *before.manifest.files)]
    return mtimes[0] != mtimes[1]


def test_the_manifest_is_complete(compiled: Artifact, spec: BuildSpec, tmp_path: Path) -> None:
    assert compiled.directory == Path("build/tiny/artifact")
    assert names_in(compiled.directory) == ["manifest.json", "program.json"]
    manifest = compiled.manifest
    assert manifest == open_artifact(compiled.directory, full=True).manifest
    assert (manifest.format_version, manifest.neuron_spec_version) == (2, __version__)
    assert manifest.neuron is None and not manifest.holds_weights
    assert len(manifest.compatibility) == 64
    assert (manifest.name, manifest.backend) == ("tiny", "reference")
    assert (manifest.speculation, manifest.num_draft_tokens) == (True, 3)
    age = datetime.now(timezone.utc) - datetime.fromisoformat(manifest.created_at)
    assert 0 <= age.total_seconds() < 600
    assert manifest.libraries == {
        "torch": metadata.version("torch"), "python": platform.python_version(),
    }  # fmt: skip
    assert [vars(claim) for claim in claims_of(spec.verification)] == [
        claim.model_dump() for claim in manifest.claims
    ]
    assert manifest.numerics == NUMERICS
    assert manifest.spec == spec.model_dump(mode="json")
    assert compiled.spec == spec.model_copy(update={"base_directory": Path.cwd()})
    [program] = manifest.files
    assert program.sha256 == sha256(compiled.directory / "program.json")


def test_the_manifest_names_the_models_with_digests(compiled: Artifact, tmp_path: Path) -> None:
    models = compiled.manifest.models
    assert (models["target"].source, models["draft"].source) == ("target", "eagle")
    assert compiled.model_directory("target") == tmp_path / "target"
    assert compiled.model_directory("draft") == tmp_path / "build" / "tiny" / "draft"
    assert [file.name for file in models["target"].files] == [
        "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
    ]  # fmt: skip
    assert [file.name for file in models["draft"].files] == ["config.json", "model.safetensors"]
    for model in models.values():
        for file in model.files:
            assert file.sha256 == sha256(Path(model.directory) / file.name)


def test_the_smoke_run_is_recorded(compiled: Artifact) -> None:
    program = json.loads((compiled.directory / "program.json").read_text())
    assert program["dtype"] == "float32"
    assert 2 <= len(program["smoke"]["tokens"]) <= 5


def test_a_target_alone(spec: BuildSpec) -> None:
    alone = spec.model_copy(update={"draft": type(spec.draft)()})
    manifest = compile_model(alone).manifest
    assert (manifest.speculation, manifest.num_draft_tokens) == (False, 0)
    assert manifest.models.keys() == {"target"}


def test_errors_are_found_before_anything_is_written(spec: BuildSpec) -> None:
    with pytest.raises(PreflightError, match="draft-unprepared"):
        compile_model(spec)
    assert not Path("build").exists()


def test_an_unknown_backend_is_told_the_nearest(spec: BuildSpec) -> None:
    with pytest.raises(UserError, match="did you mean 'reference'"):
        compile_model(spec, backend="refrence")


# Kept, or built anew


def test_the_same_inputs_keep_the_artifact(compiled: Artifact, spec: BuildSpec) -> None:
    before = (compiled.directory / "manifest.json").stat().st_mtime_ns
    again = compile_model(spec)
    assert again.manifest == compiled.manifest
    assert again.manifest.created_at == compiled.manifest.created_at
    assert (compiled.directory / "manifest.json").stat().st_mtime_ns == before


def test_a_touched_but_unchanged_file_keeps_it(
    compiled: Artifact, spec: BuildSpec, tmp_path: Path
) -> None:
    os.utime(tmp_path / "target" / "model.safetensors", ns=(1, 1))
    assert compile_model(spec).manifest == compiled.manifest


def test_force_builds_anew(compiled: Artifact, spec: BuildSpec) -> None:
    again = compile_model(spec, force=True)
    assert built_anew(again, compiled)
    assert again.manifest.fingerprint == compiled.manifest.fingerprint


def test_a_changed_spec_builds_anew(compiled: Artifact, spec: BuildSpec) -> None:
    draft = spec.draft.model_copy(update={"num_draft_tokens": 2})
    again = compile_model(spec.model_copy(update={"draft": draft}))
    assert built_anew(again, compiled)
    assert again.manifest.fingerprint != compiled.manifest.fingerprint
    assert open_artifact(compiled.directory).manifest.num_draft_tokens == 2


def test_changed_weights_are_refused_by_open_and_built_anew_by_compile(
    compiled: Artifact, spec: BuildSpec, tmp_path: Path
) -> None:
    tiny.write_target(tmp_path / "target", seed=7)
    with pytest.raises(ArtifactError, match=r"target/model\.safetensors: content differs"):
        open_artifact(compiled.directory)
    prepare(spec)
    again = compile_model(spec)
    assert again.manifest.fingerprint != compiled.manifest.fingerprint


@pytest.mark.parametrize("name", ["program.json", "manifest.json"])
def test_a_damaged_artifact_is_built_anew(compiled: Artifact, spec: BuildSpec, name: str) -> None:
    (compiled.directory / name).write_text("{}")
    with pytest.raises(ArtifactError, match=name):
        open_artifact(compiled.directory)
    assert compile_model(spec).manifest.fingerprint == compiled.manifest.fingerprint
    open_artifact(compiled.directory, full=True)


def test_the_same_inputs_elsewhere_have_the_same_fingerprint(
    compiled: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("target", "eagle"):
        shutil.copytree(tmp_path / name, elsewhere / f"{name}-2")
    text = (tmp_path / "tiny.toml").read_text()
    for name in ("target", "eagle"):
        text = text.replace(f'model = "{name}"', f'model = "./{name}-2"')
    (elsewhere / "other-name.toml").write_text(text)
    monkeypatch.chdir(elsewhere)
    spec = load_spec("other-name.toml")
    prepare(spec)
    manifest = compile_model(spec).manifest
    assert manifest.fingerprint == compiled.manifest.fingerprint
    assert manifest.models["target"].directory == str(elsewhere / "target-2")


# Whether, and why


def reason_of(spec: BuildSpec, **options: Any) -> tuple[bool, str]:
    cache = plan_compile(spec, **options).cache
    return cache.hit, cache.reason


def test_the_reason_is_told_without_writing_anything(prepared_spec: BuildSpec) -> None:
    assert reason_of(prepared_spec) == (False, "no artifact there yet")
    assert not Path("build/tiny/artifact").exists()


def test_nothing_changed(compiled: Artifact, spec: BuildSpec) -> None:
    assert reason_of(spec) == (True, "nothing changed")
    assert reason_of(spec, force=True) == (False, "--force")


def test_a_changed_field_is_named(compiled: Artifact, spec: BuildSpec) -> None:
    shape = spec.shape.model_copy(update={"max_total_tokens": 100})
    changed = spec.model_copy(update={"shape": shape})
    assert reason_of(changed) == (False, "shape.max_total_tokens 96 -> 100 changed")


def test_changed_weights_are_named(compiled: Artifact, spec: BuildSpec, tmp_path: Path) -> None:
    tiny.write_target(tmp_path / "target", seed=7)
    prepare(spec)
    hit, reason = reason_of(spec)
    assert not hit and "target weights" in reason and "draft weights" in reason


def test_another_library_is_named(
    compiled: Artifact, spec: BuildSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceBackend, "libraries", lambda self: {"torch": "0.1"})
    assert reason_of(spec) == (False, f"torch {metadata.version('torch')} -> 0.1 changed")


def test_a_suffix_of_pytorchs_own_version_changes_nothing(
    spec: BuildSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install torch` on Linux: the package is 2.13.0, `torch.__version__` 2.13.0+cu130."""
    monkeypatch.setattr(torch, "__version__", metadata.version("torch").split("+")[0] + "+cu130")
    prepare(spec)
    assert open_artifact(compile_model(spec).directory).manifest.libraries["torch"] == (
        metadata.version("torch")
    )


def test_an_artifact_of_other_libraries_is_kept_by_compile_there_only(
    compiled: Artifact, spec: BuildSpec
) -> None:
    path = compiled.directory / "manifest.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "libraries": {"torch": "0.1", "python": "3.1"}}))
    with pytest.raises(ArtifactError, match=r"torch: .*, compiled with 0\.1"):
        open_artifact(compiled.directory)
    assert reason_of(spec) == (False, f"torch 0.1 -> {metadata.version('torch')} changed")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("program.json", "{}", "files are not as they were compiled: .*program.json"),
        ("manifest.json", "{", "damaged manifest"),
        ("manifest.json", '{"format_version": 1}', "made by another version"),
    ],
)
def test_a_damaged_artifact_is_a_reason(
    compiled: Artifact, spec: BuildSpec, name: str, content: str, reason: str
) -> None:
    (compiled.directory / name).write_text(content)
    hit, found = reason_of(spec)
    assert not hit and re.match(reason, found)


def test_weights_as_recorded_are_not_read_again(
    compiled: Artifact, spec: BuildSpec, tmp_path: Path
) -> None:
    read: list[str] = []
    plan_compile(spec, progress=lambda label, done, total: read.append(label))
    assert read == []
    os.utime(tmp_path / "target" / "model.safetensors", ns=(1, 1))
    plan_compile(spec, progress=lambda label, done, total: read.append(label))
    assert read == ["digest model.safetensors"]
    assert plan_compile(spec, force=True, progress=lambda *told: read.append(told[0]))
    assert len(read) > 2


# Interrupted, refused


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("compiler crashed"), RuntimeError),
        (OSError(28, "No space left on device"), StorageError),
    ],
)
@pytest.mark.parametrize("has_earlier", [False, True])
def test_an_interrupted_build_leaves_what_was_there(
    prepared_spec: BuildSpec,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    expected: type[BaseException],
    has_earlier: bool,
) -> None:
    earlier = compile_model(prepared_spec) if has_earlier else None

    def build(self: Any, spec: Any, prepared: Any, folder: Path, **options: Any) -> None:
        (folder / "program.json").write_text("half")
        raise error

    monkeypatch.setattr(ReferenceBackend, "build", build)
    with pytest.raises(expected):
        compile_model(prepared_spec, force=True)
    assert names_in(Path("build/tiny")) == (["artifact", "draft"] if has_earlier else ["draft"])
    if earlier:
        assert open_artifact(earlier.directory, full=True).manifest == earlier.manifest


@pytest.mark.parametrize("output", ["build/tiny/draft", "target"])
def test_the_output_never_replaces_a_model(prepared_spec: BuildSpec, output: str) -> None:
    before = names_in(Path(output))
    with pytest.raises(UserError, match=r"holds no manifest\.json"):
        compile_model(prepared_spec, output=output)
    assert names_in(Path(output)) == before


def test_the_output_folder_can_be_chosen(prepared_spec: BuildSpec, tmp_path: Path) -> None:
    artifact = compile_model(prepared_spec, output=tmp_path / "a" / "b")
    assert artifact.directory == tmp_path / "a" / "b"
    assert not Path("build/tiny/artifact").exists()
