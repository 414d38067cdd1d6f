"""Writing a manifest last, and opening an artifact only if everything it names is as recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from neuron_spec.artifacts.manifest import (
    FORMAT_VERSION,
    SMALL_MODEL_FILES,
    FileEntry,
    Manifest,
    ModelRecord,
)
from neuron_spec.errors import ArtifactError
from neuron_spec.files import FileRecord, write_text
from neuron_spec.spec.schema import BuildSpec

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Artifact:
    """An artifact that was opened and found whole."""

    directory: Path
    manifest: Manifest

    @property
    def spec(self) -> BuildSpec:
        """The build spec it was made from."""
        return BuildSpec.model_validate({**self.manifest.spec, "name": self.manifest.name})

    def model_directory(self, role: str) -> Path:
        """Where the weights of `target` or `draft` are."""
        return Path(self.manifest.models[role].directory)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json`; call it last, a folder without it is not an artifact."""
    write_text(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")


def open_artifact(path: str | Path, *, full: bool = False, any_libraries: bool = False) -> Artifact:
    """Open an artifact and check that its files and the weights it links to are as recorded.

    Args:
        full: compute every digest again, also of files whose size and time of change are as
            recorded (otherwise those are trusted, so that large weights open at once).
        any_libraries: do not ask whether this environment has the library versions it was made
            with: for who only reads about it.

    Raises:
        ArtifactError: no artifact, another format, missing or changed files, other library
            versions; all that differs is named.
    """
    directory = Path(path)
    manifest = read_manifest(directory)
    faults = _differences(directory, manifest.files, full)
    for model in manifest.models.values():
        files = _needed_files(manifest, model)
        faults += _differences(Path(model.directory), files, full)
    if faults:
        raise ArtifactError(
            "\n  ".join(["files are not as they were compiled", *faults]),
            where=directory,
            mend="restore the files, or compile again: neuron-spec compile SPEC",
        )
    if not any_libraries:
        _refuse_other_libraries(directory, manifest)
    return Artifact(directory, manifest)


def _needed_files(manifest: Manifest, model: ModelRecord) -> tuple[FileEntry, ...]:
    if not manifest.holds_weights:
        return model.files
    return tuple(entry for entry in model.files if entry.name in SMALL_MODEL_FILES)


def _refuse_other_libraries(directory: Path, manifest: Manifest) -> None:
    """The Python version is recorded for comparing measurements, and decides nothing."""
    faults = [
        f"{name}: {here or 'not installed here'}, compiled with {version}"
        for name, version in manifest.libraries.items()
        if name != "python" and (here := installed_version(name)) != version
    ]
    if faults:
        raise ArtifactError(
            "\n  ".join(["made with other library versions", *faults]),
            where=directory,
            mend="install those versions, or compile again here: neuron-spec compile SPEC",
        )


def installed_version(package: str) -> str | None:
    """Of a package in this environment, read without importing it; None if it is not here."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def read_manifest(directory: Path) -> Manifest:
    """The manifest alone; what it names may have changed or be gone.

    Raises:
        ArtifactError: no artifact, a damaged manifest, or another format.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise ArtifactError(
            "not an artifact: no manifest.json" if directory.is_dir() else "no such directory",
            where=directory,
            mend="name the folder that `neuron-spec compile SPEC` wrote",
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data.get("format_version") if isinstance(data, dict) else None
        if version == FORMAT_VERSION:
            manifest = Manifest.model_validate(data)
            BuildSpec.model_validate(manifest.spec)  # `Artifact.spec` may rely on it
            return manifest
    except (ValueError, RecursionError) as error:  # pydantic's are among the former
        reason = str(error).splitlines()[0]
        raise ArtifactError(f"damaged manifest: {reason}", where=path) from None
    raise ArtifactError(
        "made by another version of neuron-spec",
        where=path,
        found=f"format {version}",
        expected=f"format {FORMAT_VERSION}",
        mend="compile again: neuron-spec compile SPEC",
    )


def _differences(directory: Path, entries: tuple[FileEntry, ...], full: bool) -> list[str]:
    faults = []
    for entry in entries:
        path = directory / entry.name
        difference = FileRecord(**entry.model_dump()).difference(path, always_digest=full)
        if difference is not None:
            faults.append(f"{path}: {difference}")
    return faults
