"""Build spec + prepared checkpoints -> artifact: checked first, written beside, renamed last.

A plan says whether there is anything to do, and why; running it does it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from neuron_spec.artifacts import (
    Artifact,
    Ingredients,
    Manifest,
    ModelRecord,
    NeuronRecord,
    PinnedShapesRecord,
    changes,
    compatibility_of,
    fingerprint_of,
    open_artifact,
    read_manifest,
    shared_by_pools,
    write_manifest,
)
from neuron_spec.artifacts.manifest import (
    FORMAT_VERSION,
    SMALL_MODEL_FILES,
    ClaimRecord,
    FileEntry,
)
from neuron_spec.artifacts.store import MANIFEST
from neuron_spec.backends import get_backend
from neuron_spec.backends.builds import Backend
from neuron_spec.checkpoints.identify import Identity, identify, identify_target
from neuron_spec.checkpoints.prepare import RECORD, PreparedCheckpoint
from neuron_spec.checkpoints.source import find_model
from neuron_spec.errors import ArtifactError
from neuron_spec.files import FileRecord, Progress, clear_leftovers, new_directory, no_progress
from neuron_spec.preflight import check, raise_on_errors
from neuron_spec.preflight.check import locate
from neuron_spec.spec.guarantees import INT8_NUMERICS, NUMERICS, PINNED_NUMERICS, claims_of
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.version import __version__


@dataclass(frozen=True)
class Cache:
    """Whether the artifact that is there can stay.

    Attributes:
        reason: why, or why not.
    """

    hit: bool
    reason: str


@dataclass(frozen=True)
class CompilePlan:
    """A build that was checked, and compared with what is there.

    Attributes:
        fingerprint: of what would be built.
        earlier: the artifact that is there, if it can stay.
    """

    spec: BuildSpec
    prepared: PreparedCheckpoint
    backend: Backend
    destination: Path
    ingredients: Ingredients
    fingerprint: str
    cache: Cache
    earlier: Artifact | None = None


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
        DependencyError: the backend's libraries are not here.
        BackendError: the build failed; the message says what to change.
        StorageError: the disk is full or not writable.
    """
    engine = get_backend(backend)
    engine.require()
    plan = plan_compile(spec, prepared, output, backend=backend, force=force, progress=progress)
    return run_plan(plan, progress)


def plan_compile(
    spec: BuildSpec,
    prepared: PreparedCheckpoint | None = None,
    output: str | Path | None = None,
    *,
    backend: str = "reference",
    force: bool = False,
    progress: Progress = no_progress,
) -> CompilePlan:
    """Check a build and say whether there is anything to do; nothing is written.

    Arguments as of `compile_model`. The backend's libraries need not be here.

    Raises:
        PreflightError: the preflight found errors that concern this backend; all are listed.
    """
    engine = get_backend(backend)
    prepared = prepared or locate(spec)
    raise_on_errors(check(spec, prepared), backend)
    destination = artifact_folder(spec, output)
    before = _manifest_at(destination)
    known = None if force or isinstance(before, str) else before
    ingredients = Ingredients(
        engine.name,
        spec.model_dump(mode="json"),
        _models(spec, prepared, known, progress),
        engine.libraries(),
        engine.environment(),
    )
    fingerprint = fingerprint_of(ingredients)
    cache, earlier = _compared(destination, before, ingredients, force=force)
    return CompilePlan(
        spec, prepared, engine, destination, ingredients, fingerprint, cache, earlier
    )


def artifact_folder(spec: BuildSpec, output: str | Path | None = None) -> Path:
    """Where the artifact of a spec lies if nothing else is said."""
    return Path(output) if output is not None else spec.build_directory / "artifact"


def missing_models(spec: BuildSpec) -> dict[str, str]:
    """Role -> model of those that are not on this machine; nothing is downloaded."""
    models = {"target": spec.target.model, "draft": spec.draft.model}
    prepared = (spec.build_directory / "draft" / RECORD).is_file()
    return {
        role: model
        for role, model in models.items()
        if model is not None
        and not (role == "draft" and prepared and spec.draft.method != "model")
        and find_model(model, spec.base_directory) is None
    }


def run_plan(plan: CompilePlan, progress: Progress = no_progress) -> Artifact:
    """Keep what is there, or build; errors as of `compile_model`."""
    clear_leftovers(plan.destination)
    if plan.earlier is not None:
        return plan.earlier
    plan.backend.require()
    with new_directory(plan.destination, MANIFEST) as folder:
        report = plan.backend.build(
            plan.spec,
            plan.prepared,
            folder,
            destination=plan.destination,
            progress=progress,
        )
        write_manifest(folder, _manifest(plan, report, _built(folder, progress)))
    return open_artifact(plan.destination)


def _manifest_at(destination: Path) -> Manifest | str:
    """The earlier manifest, or why there is none."""
    try:
        return read_manifest(destination)
    except ArtifactError as error:
        is_there = (destination / MANIFEST).exists()
        return error.problem if is_there else "no artifact there yet"


def _compared(
    destination: Path, before: Manifest | str, now: Ingredients, *, force: bool
) -> tuple[Cache, Artifact | None]:
    if force:
        return Cache(False, "--force"), None
    if isinstance(before, str):
        return Cache(False, before), None
    if found := changes(Ingredients.of(before), now):
        return Cache(False, f"{'; '.join(found)} changed"), None
    try:
        earlier = open_artifact(destination, any_libraries=True)
    except ArtifactError as error:
        return Cache(False, error.problem.replace("\n  ", ": ")), None
    return Cache(True, "nothing changed"), earlier


def _models(
    spec: BuildSpec, prepared: PreparedCheckpoint, known: Manifest | None, progress: Progress
) -> dict[str, ModelRecord]:
    sources = {"target": (spec.target.model, identify_target(prepared.target))}
    if prepared.draft is not None:
        sources["draft"] = (str(spec.draft.model), identify(prepared.draft))
    earlier = known.models if known else {}
    return {
        role: _model_record(source, model, earlier.get(role), progress)
        for role, (source, model) in sources.items()
    }


def _model_record(
    source: str, model: Identity, earlier: ModelRecord | None, progress: Progress
) -> ModelRecord:
    directory, weights = model.directory, model.files.files
    others = [directory / name for name in SMALL_MODEL_FILES if (directory / name).is_file()]
    known = {entry.name: entry for entry in earlier.files} if earlier else {}
    return ModelRecord(
        source=source,
        directory=str(directory.absolute()),
        files=tuple(
            _entry(path, path.name, known.get(path.name), progress) for path in (*others, *weights)
        ),
    )


def _entry(path: Path, name: str, known: FileEntry | None, progress: Progress) -> FileEntry:
    """A file as it is; one with size and time of change as recorded is not read again."""
    now = FileRecord.without_digest(path)
    if known and (known.num_bytes, known.mtime_ns) == (now.num_bytes, now.mtime_ns):
        return known
    return FileEntry(**{**FileRecord.of(path, progress).as_dict(), "name": name})


def _built(folder: Path, progress: Progress) -> tuple[FileEntry, ...]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        _entry(path, path.relative_to(folder).as_posix(), None, progress) for path in files
    )


def _manifest(plan: CompilePlan, report: dict[str, Any], files: tuple[FileEntry, ...]) -> Manifest:
    spec, ingredients = plan.spec, plan.ingredients
    neuron = NeuronRecord(**report) if plan.backend.name == "neuron" else None
    pinned = PinnedShapesRecord(**report["pinned_shapes"]) if "pinned_shapes" in report else None
    shared = shared_by_pools(ingredients, spec.num_draft_tokens, neuron)
    return Manifest(
        format_version=FORMAT_VERSION,
        neuron_spec_version=__version__,
        name=spec.name,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        backend=ingredients.backend,
        fingerprint=plan.fingerprint,
        compatibility=compatibility_of(shared),
        spec=ingredients.spec,
        speculation=spec.speculates,
        num_draft_tokens=spec.num_draft_tokens,
        claims=tuple(
            ClaimRecord(level=claim.level, status=claim.status, source=claim.source)
            for claim in claims_of(spec.verification)
        ),
        numerics=_numerics(spec, ingredients.backend, is_pinned=pinned is not None),
        models=ingredients.models,
        libraries={**ingredients.libraries, "python": platform.python_version()},
        environment=ingredients.environment,
        neuron=neuron,
        pinned_shapes=pinned,
        files=files,
    )


def _numerics(spec: BuildSpec, backend: str, *, is_pinned: bool) -> str:
    """What the claims, which are about the algorithm, leave open."""
    is_int8 = backend == "reference" and spec.reference.target_weights == "int8"
    return "; ".join([PINNED_NUMERICS if is_pinned else NUMERICS, *[INT8_NUMERICS] * is_int8])
