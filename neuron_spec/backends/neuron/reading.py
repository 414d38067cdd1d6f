"""Facts out of checkpoint directories; nothing is downloaded, and no tensor is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from neuron_spec.backends.neuron.facts import CheckpointFacts, DraftFacts, TargetFacts
from neuron_spec.checkpoints.formats.eagle import INPUT_NORM
from neuron_spec.checkpoints.formats.medusa import num_heads
from neuron_spec.checkpoints.identify import identify
from neuron_spec.checkpoints.model_config import read_raw_config
from neuron_spec.checkpoints.prepare import RECORD
from neuron_spec.checkpoints.source import find_model
from neuron_spec.errors import CheckpointError
from neuron_spec.spec.schema import BuildSpec


def facts_here(spec: BuildSpec) -> CheckpointFacts:
    """What the directories on this machine tell: the prepared draft, else the published one.

    Raises:
        CheckpointError: the target or the prepared draft is damaged.
    """
    target = find_model(spec.target.model, spec.base_directory)
    prepared = spec.build_directory / "draft"
    if spec.draft.method != "model" and (prepared / RECORD).is_file():
        return facts_of(spec, target, prepared)
    return replace(facts_of(spec, target, None), draft=_published(spec))


def _published(spec: BuildSpec) -> DraftFacts:
    """Of a draft that is not prepared. Heads have no directory yet: theirs is the prepared one."""
    if spec.draft.model is None:
        return DraftFacts()
    directory = find_model(spec.draft.model, spec.base_directory)
    if directory is None:
        return DraftFacts()
    if spec.draft.method == "model":
        return _draft_facts(spec.draft.method, directory)
    try:
        return replace(_draft_facts(spec.draft.method, directory), directory=None)
    except CheckpointError:  # as a download that was broken off; `check` tells it
        return DraftFacts()


def facts_of(spec: BuildSpec, target: Path | None, draft: Path | None) -> CheckpointFacts:
    """Facts of two directories; None for one that is not here.

    Raises:
        CheckpointError: a directory that is damaged, or no checkpoint.
    """
    return CheckpointFacts(
        TargetFacts() if target is None else _target_facts(target),
        DraftFacts() if draft is None else _draft_facts(spec.draft.method, draft),
    )


def _target_facts(directory: Path) -> TargetFacts:
    raw = read_raw_config(directory)
    return TargetFacts(raw.get("model_type"), str(directory))


def _draft_facts(method: str, directory: Path) -> DraftFacts:
    if method == "model":
        return DraftFacts(read_raw_config(directory).get("model_type"), str(directory))
    draft = identify(directory)
    return DraftFacts(
        draft.config.model_type,
        str(directory),
        has_input_norm=INPUT_NORM in draft.names,
        num_medusa_heads=num_heads(draft.shapes) or None,
    )
