"""An artifact opens only if everything that it names is as recorded."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from neuron_spec.artifacts import (
    Ingredients,
    Manifest,
    ModelRecord,
    fingerprint_of,
    open_artifact,
)
from neuron_spec.artifacts.manifest import FORMAT_VERSION, FileEntry
from neuron_spec.artifacts.store import write_manifest
from neuron_spec.errors import ArtifactError
from neuron_spec.files import FileRecord
from neuron_spec.spec import BuildSpec

PROGRAM = "program.json"
VERSION = metadata.version("pydantic")


def entry_of(path: Path) -> FileEntry:
    return FileEntry(**FileRecord.of(path).as_dict())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"weights")
    (tmp_path / "model" / "config.json").write_bytes(b"config")
    return tmp_path / "model"


@pytest.fixture
def artifact(tmp_path: Path, model: Path) -> Path:
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / PROGRAM).write_text("graph")
    spec = BuildSpec.model_validate({"target": {"model": "m"}})
    files = tuple(entry_of(model / name) for name in ("weights", "config.json"))
    manifest = Manifest(
        format_version=FORMAT_VERSION, neuron_spec_version="1", name="n", created_at="now",
        backend="b", fingerprint="f", spec=spec.model_dump(mode="json"), speculation=False,
        num_draft_tokens=0, claims=(), numerics="", libraries={},
        models={"target": ModelRecord(source="m", directory=str(model), files=files)},
        files=(entry_of(folder / PROGRAM),),
    )  # fmt: skip
    write_manifest(folder, manifest)
    return folder


def change_manifest(artifact: Path, **changes: Any) -> None:
    path = artifact / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_artifact_opens(artifact: Path, model: Path) -> None:
    opened = open_artifact(str(artifact))
    assert opened.directory == artifact
    assert opened.model_directory("target") == model
    assert (opened.spec.name, opened.spec.target.model) == ("n", "m")
    with pytest.raises(ValidationError, match="frozen"):
        opened.manifest.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["weights", "config.json", PROGRAM])
@pytest.mark.parametrize("fault", ["missing", "longer", "changed", "folder"])
def test_every_missing_or_changed_file_is_named(
    artifact: Path, model: Path, name: str, fault: str
) -> None:
    path = (artifact if name == PROGRAM else model) / name
    content = path.read_bytes()
    path.unlink()
    if fault == "folder":
        path.mkdir()
    elif fault != "missing":
        path.write_bytes(content + b"!" if fault == "longer" else bytes(len(content)))
        os.utime(path, ns=(1, 1))
    with pytest.raises(ArtifactError) as caught:
        open_artifact(artifact)
    assert f"{path}: " in str(caught.value) and caught.value.exit_code == 2
    assert "compile again" in str(caught.value)


def test_all_faults_are_in_one_error(artifact: Path, model: Path) -> None:
    for path in (artifact / PROGRAM, model / "weights", model / "config.json"):
        path.unlink()
    with pytest.raises(ArtifactError) as caught:
        open_artifact(artifact)
    assert str(caught.value).count(": missing") == 3


def test_a_touched_file_with_the_same_bytes_still_opens(artifact: Path, model: Path) -> None:
    for path in (artifact / PROGRAM, model / "weights"):
        os.utime(path, ns=(1, 1))
    open_artifact(artifact)


def test_full_reads_what_looks_unchanged(artifact: Path, model: Path) -> None:
    path = model / "weights"
    times = path.stat()
    path.write_bytes(b"WEIGHTS")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    open_artifact(artifact)
    with pytest.raises(ArtifactError, match="weights: content differs"):
        open_artifact(artifact, full=True)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, None, "1"])
def test_another_format_is_told(artifact: Path, version: Any) -> None:
    change_manifest(artifact, format_version=version, something="new")
    with pytest.raises(ArtifactError, match="another version") as caught:
        open_artifact(artifact)
    assert f"format {version}" in str(caught.value)
    assert f"format {FORMAT_VERSION}" in str(caught.value)


@pytest.mark.parametrize("content", ["{", "", "[" * 100])
def test_a_manifest_that_is_no_json(artifact: Path, content: str) -> None:
    (artifact / "manifest.json").write_text(content)
    with pytest.raises(ArtifactError, match=r"manifest\.json: damaged manifest"):
        open_artifact(artifact)


@pytest.mark.parametrize(
    "changes",
    [{"extra": 1}, {"files": "x"}, {"models": {"target": {}}}, {"spec": {}}, {"spec": {"x": 1}}],
)
def test_a_manifest_of_another_shape(artifact: Path, changes: dict[str, Any]) -> None:
    change_manifest(artifact, **changes)
    with pytest.raises(ArtifactError, match="damaged manifest"):
        open_artifact(artifact)


def test_what_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no manifest\.json"):
        open_artifact(tmp_path)
    with pytest.raises(ArtifactError, match="no such directory") as caught:
        open_artifact(tmp_path / "none")
    assert "neuron-spec compile" in str(caught.value)


# Library versions


def test_other_library_versions_are_refused_with_what_differs(artifact: Path) -> None:
    change_manifest(
        artifact,
        libraries={"torch": "0.1", "no-such-package": "2", "python": "2.7", "pydantic": VERSION},
    )
    with pytest.raises(ArtifactError, match="other library versions") as caught:
        open_artifact(artifact)
    text = str(caught.value)
    assert f"torch: {metadata.version('torch')}, compiled with 0.1" in text
    assert "no-such-package: not installed here, compiled with 2" in text
    assert "python" not in text and "pydantic" not in text and caught.value.exit_code == 2


def test_who_only_reads_about_it_needs_no_libraries(artifact: Path) -> None:
    change_manifest(artifact, libraries={"no-such-package": "2"})
    assert open_artifact(artifact, any_libraries=True).manifest.libraries


# Weights of its own


NEURON_RECORD = {
    "instance": "trn2.3xlarge", "sdk": "2.29", "tp_degree": 4, "logical_nc_config": 2,
    "batch_size": 1, "graphs": {"target context_encoding_model": [128, [1, 256]]}, "config": {},
    "environment": {}, "compile_seconds": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("holds_weights", [False, True])
def test_an_artifact_with_weights_of_its_own_needs_no_others(
    artifact: Path, model: Path, holds_weights: bool
) -> None:
    change_manifest(artifact, neuron={**NEURON_RECORD, "holds_weights": holds_weights})
    (model / "weights").unlink()
    if holds_weights:
        graphs = open_artifact(artifact).manifest.neuron.graphs  # type: ignore[union-attr]
        assert graphs == {"target context_encoding_model": (128, (1, 256))}
        (model / "config.json").unlink()  # what the tokenizer and the classes are made from
    with pytest.raises(ArtifactError, match="missing"):
        open_artifact(artifact)


# The fingerprint


def fingerprint(
    model: Path,
    backend: str = "reference",
    torch: str = "1",
    environment: dict[str, str] | None = None,
    **sections: dict[str, Any],
) -> str:
    spec = BuildSpec.model_validate({"target": {"model": str(model)}, **sections})
    files = tuple(entry_of(path) for path in sorted(model.iterdir()))
    record = ModelRecord(source=str(model), directory=str(model), files=files)
    ingredients = Ingredients(
        backend, spec.model_dump(mode="json"), {"target": record}, {"torch": torch},
        environment or {},
    )  # fmt: skip
    return fingerprint_of(ingredients)


def test_paths_and_times_are_not_in_the_fingerprint(model: Path, tmp_path: Path) -> None:
    before = fingerprint(model)
    os.utime(model / "weights", ns=(1, 1))
    assert fingerprint(model.rename(tmp_path / "moved")) == before


NEURON = {"instance": "trn2.3xlarge", "tp_degree": 4}


@pytest.mark.parametrize(
    ("backend", "own", "other"),
    [
        ("reference", {"reference": {"dtype": "bfloat16"}}, {"neuron": NEURON}),
        ("neuron", {"neuron": NEURON}, {"reference": {"dtype": "bfloat16"}}),
    ],
)
def test_the_table_of_another_backend_decides_nothing(
    model: Path, backend: str, own: dict[str, Any], other: dict[str, Any]
) -> None:
    before = fingerprint(model, backend)
    assert fingerprint(model, backend, **other) == before
    assert fingerprint(model, backend, **own) != before


def test_all_that_decides_the_result_is_in_the_fingerprint(model: Path) -> None:
    prints = [
        fingerprint(model),
        fingerprint(model, backend="other"),
        fingerprint(model, torch="2"),
        fingerprint(model, environment={"NEURON_CC_FLAGS": "-O1"}),
        fingerprint(model, shape={"batch_size": 2}),
        fingerprint(model, reference={"dtype": "bfloat16"}),
        fingerprint(model, draft={"method": "eagle", "model": "d"}),
        fingerprint(model, draft={"method": "eagle", "model": "d", "num_draft_tokens": 5}),
    ]
    (model / "weights").write_bytes(b"others!")
    prints.append(fingerprint(model))
    assert len(set(prints)) == len(prints)
