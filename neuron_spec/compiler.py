"""Build spec + prepared checkpoints -> artifact: checked first, written beside, renamed last."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from neuron_spec.artifacts import (
    Artifact,
    Manifest,
    ModelRecord,
    fingerprint_of,
    open_artifact,
    write_manifest,
)
from neuron_spec.artifacts.manifest import FORMAT_VERSION, ClaimRecord, FileEntry
from neuron_spec.artifacts.store import MANIFEST
from neuron_spec.backends import get_backend
from neuron_spec.checkpoints.identify import Identity, identify, identify_target
from neuron_spec.checkpoints.prepare import PreparedCheckpoint
from neuron_spec.errors import ArtifactError
from neuron_spec.files import FileRecord, Progress, clear_leftovers, new_directory, no_progress
from neuron_spec.preflight import check, raise_on_errors
from neuron_spec.preflight.check import locate
from neuron_spec.spec.guarantees import NUMERICS, claims_of
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.version import __version__

_OTHER_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class _Inputs:
    """What decides the artifact, gathered before anything is built."""

    spec: dict[str, Any]
    models: dict[str, ModelRecord]
    libraries: dict[str, str]
    fingerprint: str


def compile_model(
    spec: BuildSpec,
    prepared: PreparedCheckpoint | None = None,
    output: str | Path | None = None,
    *,
    backend: str = "reference",
    force: bool = False,
    progress: Progress = no_progress,
) -> Artifact:
    """Compile a build; an artifact with the same fingerprint at `output` is kept as it is.

    Args:
        prepared: what `prepare` returned; found by default as `check` finds it.
        output: the artifact's folder; `build/<spec name>/artifact` by default.
        force: compile anew even if nothing changed.

    Raises:
        PreflightError: the preflight found errors that concern this backend; all are listed.
        StorageError: the disk is full or not writable.
    """
    engine = get_backend(backend)
    prepared = prepared or locate(spec)
    raise_on_errors(check(spec, prepared), backend)
    inputs = _gather(spec, prepared, engine.name, engine.libraries(), progress)
    destination = Path(output) if output is not None else spec.build_directory / "artifact"
    clear_leftovers(destination)
    if not force and (earlier := _unchanged(destination, inputs.fingerprint)):
        return earlier
    with new_directory(destination, MANIFEST) as folder:
        engine.build(spec, prepared, folder)
        write_manifest(folder, _manifest(spec, engine.name, inputs, folder))
    return open_artifact(destination)


def _gather(
    spec: BuildSpec,
    prepared: PreparedCheckpoint,
    backend: str,
    libraries: dict[str, str],
    progress: Progress,
) -> _Inputs:
    sections = spec.model_dump(mode="json")
    target = identify_target(prepared.target)
    models = {"target": _model_record(spec.target.model, target, progress)}
    if prepared.draft is not None:
        draft = identify(prepared.draft)
        models["draft"] = _model_record(str(spec.draft.model), draft, progress)
    fingerprint = fingerprint_of(backend, sections, models, libraries)
    return _Inputs(sections, models, libraries, fingerprint)


def _model_record(source: str, model: Identity, progress: Progress) -> ModelRecord:
    directory, weights = model.directory, model.files.files
    others = [directory / name for name in _OTHER_MODEL_FILES if (directory / name).is_file()]
    return ModelRecord(
        source=source,
        directory=str(directory.absolute()),
        files=tuple(_entry(path, progress) for path in (*others, *weights)),
    )


def _entry(path: Path, progress: Progress) -> FileEntry:
    return FileEntry(**FileRecord.of(path, progress).as_dict())


def _unchanged(destination: Path, fingerprint: str) -> Artifact | None:
    try:
        artifact = open_artifact(destination)
    except ArtifactError:
        return None
    return artifact if artifact.manifest.fingerprint == fingerprint else None


def _manifest(spec: BuildSpec, backend: str, inputs: _Inputs, folder: Path) -> Manifest:
    built = sorted(path for path in folder.iterdir() if path.is_file())
    return Manifest(
        format_version=FORMAT_VERSION,
        neuron_spec_version=__version__,
        name=spec.name,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        backend=backend,
        fingerprint=inputs.fingerprint,
        spec=inputs.spec,
        speculation=spec.speculates,
        num_draft_tokens=spec.num_draft_tokens,
        claims=tuple(
            ClaimRecord(level=claim.level, status=claim.status, source=claim.source)
            for claim in claims_of(spec.verification)
        ),
        numerics=NUMERICS,
        models=inputs.models,
        libraries={**inputs.libraries, "python": platform.python_version()},
        files=tuple(_entry(path, no_progress) for path in built),
    )
