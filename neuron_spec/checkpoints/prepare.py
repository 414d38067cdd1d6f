"""Published draft -> prepared checkpoint: what NxDI and the reference backend load as it is.

The input is never edited. The output appears whole or not at all, with `prepared.json` telling
where every tensor came from. Running again with unchanged inputs does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.contradictions import (
    Contradiction,
    adopt_vocabulary,
    errors,
    needed_of_target,
    of_checkpoint,
    of_pair,
    remarks,
)
from neuron_spec.checkpoints.formats import FORMATS, hf
from neuron_spec.checkpoints.formats.medusa import PREPARED_FILE
from neuron_spec.checkpoints.identify import Identity, identify, identify_target
from neuron_spec.checkpoints.plans import PLANS, Plan
from neuron_spec.checkpoints.reading import SourceReader
from neuron_spec.checkpoints.source import resolve_model
from neuron_spec.checkpoints.tensors import DRAFT_FILES, WEIGHT_FILES, CheckpointFiles, read_json
from neuron_spec.checkpoints.torch_writer import write_torch
from neuron_spec.checkpoints.writer import write_safetensors
from neuron_spec.errors import CheckpointError, UserError
from neuron_spec.files import (
    FileRecord,
    Progress,
    clear_leftovers,
    link_or_copy,
    new_directory,
    no_progress,
    sha256,
)
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
        return PreparedCheckpoint(target, draft, _model_decisions(draft, target))
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
    clear_leftovers(destination)
    if not force and (earlier := _earlier(draft, target, destination)) is not None:
        return PreparedCheckpoint(target, destination, earlier)
    _refuse_input(destination, draft, target)
    draft_identity, target_identity = identify(draft), identify_target(target)
    _check_families(draft_identity, target_identity)
    settled = check_pair(draft_identity, target_identity)
    draft_identity = adopt_vocabulary(draft_identity, target_identity)
    plan = PLANS[draft_identity.family](draft_identity, target_identity)
    plan.decisions += settled
    with new_directory(destination, RECORD) as folder:
        record = _prepare_into(folder, (draft_identity, target_identity), plan, progress)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return PreparedCheckpoint(target, destination, tuple(plan.decisions), is_new=True)


def _prepare_into(
    folder: Path, identities: tuple[Identity, Identity], plan: Plan, progress: Progress
) -> dict[str, Any]:
    """Write what was planned; returns the record of it."""
    draft, target = (identity.directory for identity in identities)
    draft_files = _source_records(draft, DRAFT_FILES)  # before reading: a change shows
    target_files = _source_records(target, WEIGHT_FILES)
    with SourceReader([draft / file.name for file in draft_files]) as reader:
        written = _write(folder, plan, reader, progress)
        digests = {path.name: digest for path, digest in reader.file_digests(progress).items()}
        draft_files = [replace(file, sha256=digests[file.name]) for file in draft_files]
        tensors = reader.range_digests()
    # Of a target only the head is read, however large it is: its digest stands with the tensor.
    target_files[0] = replace(target_files[0], sha256=sha256(target / _CONFIG))
    linked = [FileRecord.without_digest(folder / path.name) for path in plan.links]
    outputs = (*plan.outputs, *plan.heads)
    return {
        "neuron_spec_version": __version__,
        "sources": {
            "draft": _source_record(draft, draft_files),
            "target": _source_record(target, target_files),
        },
        "decisions": plan.decisions,
        "links": [{"from": str(path), **_link_record(path)} for path in plan.links],
        "tensors": {output.name: output.record(tensors) for output in outputs},
        "files": [file.as_dict() for file in (*written, *linked)],
    }


def _write(folder: Path, plan: Plan, reader: SourceReader, progress: Progress) -> list[FileRecord]:
    """Write and link what was planned; returns the files that were written."""
    written: list[FileRecord] = []
    for path in plan.links:
        link_or_copy(path, folder / path.name, progress)
    if plan.config:
        path = folder / _CONFIG
        path.write_text(json.dumps(plan.config, indent=2) + "\n")
        written.append(FileRecord.of(path))
    if plan.outputs:
        path = folder / _WEIGHTS
        digest = write_safetensors(path, plan.outputs, progress, reader=reader)
        written.append(replace(FileRecord.without_digest(path), sha256=digest))
    if plan.heads:
        path = folder / PREPARED_FILE
        write_torch(path, plan.heads, progress, reader=reader)
        written.append(FileRecord.of(path))
    return written


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


def check_pair(draft: Identity, target: Identity) -> list[str]:
    """A draft head and its target must fit each other in every shape.

    Returns:
        How every contradiction that is no error was settled, in sentences.

    Raises:
        CheckpointError: all faults of the draft in one, or all of the target.
    """
    ours = [*of_checkpoint(draft, is_draft=True), *of_pair(draft, target)]
    theirs = of_checkpoint(target, is_draft=False)
    told = {item.code for item in ours}
    faults = [f"missing: {name}" for name in draft.missing]
    faults += [f"unexpected: {name}" for name in draft.unexpected]
    faults += [f"misshapen: {sentence}" for sentence in draft.misshapen]
    refusals = adopt_vocabulary(draft, target).refusals(target)
    faults += [sentence for code, sentence in refusals if code not in told]
    problem = f"does not fit the target {target.directory}"
    mend = "use the draft that was trained for this target, complete as published"
    _raise_on(draft, problem, faults, mend, errors(ours))
    faults = [f"missing: {name}" for name in needed_of_target(target, target.missing)[:8]]
    misshapen = needed_of_target(target, target.misshapen)
    faults += [f"misshapen: {sentence}" for sentence in misshapen[:8]]
    _raise_on(target, "cannot be the target", faults, "download it again, complete", errors(theirs))
    return [*_settled("draft", ours), *_settled("target", theirs)]


def _raise_on(
    identity: Identity, problem: str, faults: list[str], mend: str, found: list[Contradiction]
) -> None:
    """One error with all faults, which `mend` mends, and all contradictions with their own mends.

    Raises:
        CheckpointError: if there is one of them.
    """
    where = identity.directory
    if not faults and len(found) == 1:
        raise CheckpointError(f"{problem}\n  {found[0].message}", where=where, mend=found[0].mend)
    lines = [problem, *_first(faults), *(f"{item.message} (mend: {item.mend})" for item in found)]
    if len(lines) > 1:
        raise CheckpointError("\n  ".join(lines), where=where, mend=mend if faults else None)


def _first(faults: list[str], count: int = 40) -> list[str]:
    """What a person reads; the wrong kind of model has thousands of unexpected keys."""
    return faults if len(faults) <= count else [*faults[:count], f"and {len(faults) - count} more"]


def _settled(role: str, found: list[Contradiction]) -> list[str]:
    return [f"{role}: {item.message}" for item in remarks(found)]


def _model_decisions(draft: Path, target: Path) -> tuple[str, ...]:
    """How contradictions in a language model that drafts, and in its target, are settled."""
    decisions: list[str] = []
    for role, directory in (("draft", draft), ("target", target)):
        identity = identify_target(directory)
        found = of_checkpoint(identity, is_draft=role == "draft")
        _raise_on(identity, f"cannot be the {role}", [], "", errors(found))
        decisions += _settled(role, found)
    return tuple(decisions)


def _link_record(path: Path) -> dict[str, Any]:
    return FileRecord.without_digest(path).as_dict()


def _source_records(directory: Path, names: Sequence[str]) -> list[FileRecord]:
    return [FileRecord.without_digest(path) for path in _source_paths(directory, names)]


def _source_record(directory: Path, files: list[FileRecord]) -> dict[str, Any]:
    return {
        "directory": str(directory.absolute()),
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
        roles = (("draft", draft, DRAFT_FILES), ("target", target, WEIGHT_FILES))
        for role, directory, names in roles:
            source = record["sources"][role]
            if Path(source["directory"]) != directory.absolute():
                return None
            if not _unchanged(directory, _source_paths(directory, names), source["files"]):
                return None
        if not all(_unchanged_link(dict(fields)) for fields in record["links"]):
            return None
        outputs = tuple(destination / fields["name"] for fields in record["files"])
        is_whole = _unchanged(destination, outputs, record["files"])
        return tuple(record["decisions"]) if is_whole else None
    except (CheckpointError, OSError, KeyError, TypeError, ValueError):
        return None  # damaged, by another program, or replaced just now: write anew


def _source_paths(directory: Path, names: Sequence[str]) -> tuple[Path, ...]:
    return (directory / _CONFIG, *CheckpointFiles(directory, names).files)


def _unchanged_link(fields: dict[str, Any]) -> bool:
    path = Path(fields.pop("from"))
    return FileRecord(**fields).difference(path) is None


def _unchanged(directory: Path, paths: tuple[Path, ...], recorded: list[dict[str, Any]]) -> bool:
    """Whether exactly these files were recorded, and are as they were."""
    return [path.name for path in paths] == [fields["name"] for fields in recorded] and not any(
        FileRecord(**fields).difference(directory / fields["name"]) for fields in recorded
    )
