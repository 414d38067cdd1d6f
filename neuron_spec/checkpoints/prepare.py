"""Published draft -> prepared checkpoint: what NxDI and the reference backend load as it is.

The input is never edited. The output appears whole or not at all, with `prepared.json` telling
where every tensor came from. Running again with unchanged inputs does nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.formats import FORMATS, hf
from neuron_spec.checkpoints.identify import Identity, identify
from neuron_spec.checkpoints.plans import PLANS, Plan
from neuron_spec.checkpoints.source import resolve_model
from neuron_spec.checkpoints.tensors import CheckpointFiles, read_json
from neuron_spec.checkpoints.writer import write_safetensors
from neuron_spec.errors import CheckpointError, UserError
from neuron_spec.files import FileRecord, Progress, new_directory, no_progress
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.version import __version__

RECORD = "prepared.json"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True)
class PreparedCheckpoint:
    """The models of a build, both loadable as they are.

    Attributes:
        target: the target's directory.
        draft: the draft's directory, or None without a draft.
        decisions: what was copied, renamed or written, in sentences; empty if nothing was needed.
        is_new: False when an earlier preparation was still valid and nothing was written.
    """

    target: Path
    draft: Path | None
    decisions: tuple[str, ...] = ()
    is_new: bool = False


def prepare(
    spec: BuildSpec,
    output: str | Path | None = None,
    *,
    force: bool = False,
    progress: Progress = no_progress,
) -> PreparedCheckpoint:
    """Prepare the draft of a spec for its target.

    Args:
        output: where the prepared draft goes; `build/<spec name>/draft` by default.
        force: write anew even if the inputs are unchanged.
        progress: called with a label and counts while models are fetched, read and written.

    Raises:
        CheckpointError: the draft or target is damaged, or they do not belong together; all
            missing, unexpected and misshapen keys are in one error.
        StorageError: the disk is full or not writable.
    """
    target = resolve_model(spec.target.model, spec.base_directory, progress=progress)
    if spec.draft.model is None:
        return PreparedCheckpoint(target, None)
    draft = resolve_model(spec.draft.model, spec.base_directory, progress=progress)
    if spec.draft.method == "model":  # a language model is loaded as it is, by NxDI too
        return PreparedCheckpoint(target, draft)
    destination = Path(output) if output is not None else spec.build_directory / "draft"
    return prepare_draft(draft, target, destination, force=force, progress=progress)


def prepare_draft(
    draft: Path,
    target: Path,
    destination: Path,
    *,
    force: bool = False,
    progress: Progress = no_progress,
) -> PreparedCheckpoint:
    """Prepare one draft directory for one target directory; see `prepare`."""
    if not force and (earlier := _earlier(draft, target, destination)) is not None:
        return PreparedCheckpoint(target, destination, earlier)
    _refuse_input(destination, draft, target)
    draft_identity, target_identity = identify(draft), identify(target)
    _check_families(draft_identity, target_identity)
    check_pair(draft_identity, target_identity)
    plan = PLANS[draft_identity.family](draft_identity, target_identity)
    with new_directory(destination, RECORD) as folder:
        write_safetensors(folder / _WEIGHTS, plan.outputs, progress)
        (folder / _CONFIG).write_text(json.dumps(plan.config, indent=2) + "\n")
        record = _record((draft_identity, target_identity), plan, progress)
        record["files"] = [FileRecord.of(folder / name).as_dict() for name in (_CONFIG, _WEIGHTS)]
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return PreparedCheckpoint(target, destination, tuple(plan.decisions), is_new=True)


def _refuse_input(destination: Path, draft: Path, target: Path) -> None:
    """A prepared draft may itself be prepared anew, but never over itself."""
    if destination.resolve() in (draft.resolve(), target.resolve()):
        raise UserError(
            "is an input; inputs are never written to",
            where=destination,
            mend="choose another --output",
        )


def _check_families(draft: Identity, target: Identity) -> None:
    heads = " or ".join(form.DESCRIPTION for form in FORMATS if form.FAMILY in PLANS)
    roles = ((draft, tuple(PLANS), heads), (target, (hf.FAMILY,), hf.DESCRIPTION))
    for identity, families, expected in roles:
        if identity.family not in families:
            raise CheckpointError(
                f"is a {identity.family} checkpoint",
                where=identity.directory,
                expected=expected,
                mend="set draft.model to the draft head, target.model to the language model",
            )


def check_pair(draft: Identity, target: Identity) -> None:
    """A draft head and its target must fit each other in every shape.

    Raises:
        CheckpointError: all faults in one.
    """
    faults = [f"missing: {name}" for name in draft.missing]
    faults += [f"unexpected: {name}" for name in draft.unexpected]
    faults += [f"misshapen: {sentence}" for sentence in draft.misshapen]
    faults += [sentence for _, sentence in draft.refusals(target)]
    if faults:
        raise CheckpointError(
            "\n  ".join([f"does not fit the target {target.directory}", *faults]),
            where=draft.directory,
            mend="use the draft that was trained for this target, complete as published",
        )
    if target.missing or target.misshapen:
        faults = [f"missing: {name}" for name in target.missing[:8]]
        faults += [f"misshapen: {sentence}" for sentence in target.misshapen[:8]]
        raise CheckpointError(
            "\n  ".join(["the target's weights do not fit its config", *faults]),
            where=target.directory,
            mend="download it again, complete",
        )


def _record(
    identities: tuple[Identity, Identity], plan: Plan, progress: Progress
) -> dict[str, Any]:
    draft, target = identities
    draft_files = [FileRecord.of(path, progress) for path in _source_paths(draft.directory)]
    # Of a target only the head is read, however large it is: its digest stands with the tensor.
    config, *weights = _source_paths(target.directory)
    target_files = [FileRecord.of(config), *map(FileRecord.without_digest, weights)]
    return {
        "neuron_spec_version": __version__,
        "sources": {
            "draft": _source_record(draft, draft_files),
            "target": _source_record(target, target_files),
        },
        "decisions": plan.decisions,
        "tensors": {output.name: output.record() for output in plan.outputs},
    }


def _source_record(identity: Identity, files: list[FileRecord]) -> dict[str, Any]:
    return {
        "directory": str(identity.directory.absolute()),
        "files": [record.as_dict() for record in files],
    }


def _earlier(draft: Path, target: Path, destination: Path) -> tuple[str, ...] | None:
    """The decisions of an earlier preparation if it is complete and its inputs are unchanged."""
    if not (destination / RECORD).is_file():
        return None
    try:
        record = read_json(destination / RECORD)
        if record["neuron_spec_version"] != __version__:
            return None
        for role, directory in (("draft", draft), ("target", target)):
            source = record["sources"][role]
            if Path(source["directory"]) != directory.absolute():
                return None
            if not _unchanged(directory, _source_paths(directory), source["files"]):
                return None
        outputs = (destination / _CONFIG, destination / _WEIGHTS)
        is_whole = _unchanged(destination, outputs, record["files"])
        return tuple(record["decisions"]) if is_whole else None
    except (CheckpointError, KeyError, TypeError):  # damaged, or by another program: write anew
        return None


def _source_paths(directory: Path) -> tuple[Path, ...]:
    return (directory / _CONFIG, *CheckpointFiles(directory).files)


def _unchanged(directory: Path, paths: tuple[Path, ...], recorded: list[dict[str, Any]]) -> bool:
    """Whether exactly these files were recorded, and are as they were."""
    return [path.name for path in paths] == [fields["name"] for fields in recorded] and not any(
        FileRecord(**fields).difference(directory / fields["name"]) for fields in recorded
    )
