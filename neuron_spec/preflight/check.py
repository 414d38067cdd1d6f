"""All checks of a build, in one list: every finding is reported, not only the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from neuron_spec.checkpoints.identify import Identity, identify, identify_target
from neuron_spec.checkpoints.model_config import read_raw_config
from neuron_spec.checkpoints.prepare import RECORD, PreparedCheckpoint
from neuron_spec.checkpoints.source import resolve_model
from neuron_spec.errors import CheckpointError
from neuron_spec.preflight import (
    architecture,
    contradictions,
    pairing,
    provenance,
    self_drafts,
    shapes,
    vocabulary,
)
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron import check_neuron
from neuron_spec.spec.schema import BuildSpec


def check(spec: BuildSpec, prepared: PreparedCheckpoint | None = None) -> list[Finding]:
    """Everything that would fail, or be silently wrong, in a build of this spec.

    Args:
        prepared: what `prepare` returned; by default the draft in `build/<spec name>/draft` if it
            was prepared, else the spec's own draft directory.

    Returns:
        Findings, errors first; an empty list means nothing to say.
    """
    findings: list[Finding] = []
    prepared = prepared or locate(spec)
    target = _identified(prepared.target, identify_target, "target", findings)
    findings += shapes.check_shapes(spec, target)
    if target:
        findings += architecture.check_target(target)
        findings += self_drafts.check_self_draft(spec, target)
        findings += _new(contradictions.check_one(target, "target"), findings)
    draft = None
    if prepared.draft is not None:
        findings += provenance.check_sources(spec, prepared)
        draft = _identified(prepared.draft, identify, "draft", findings)
        if draft:
            findings += architecture.check_draft(draft, spec)
            findings += shapes.check_draft_length(spec, draft)
            findings += _new(contradictions.check_one(draft, "draft"), findings)
        if draft and target:
            findings += shapes.check_draft_context(spec, draft, target)
            findings += _check_pair(draft, target, spec)
    findings += check_neuron(spec, target, draft, _model_type(prepared.target))
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])


def _check_pair(draft: Identity, target: Identity, spec: BuildSpec) -> list[Finding]:
    if spec.draft.method == "model":
        is_same = spec.draft.vocabulary == "same"
        compare = vocabulary.check_draft_model if is_same else vocabulary.check_intersection
        return compare(draft, target)
    findings = contradictions.check_pair(draft, target)
    return findings + _new(pairing.check_pair(draft, target), findings)


def _new(found: list[Finding], told: list[Finding]) -> list[Finding]:
    """Without what another check has told already: it said more about it."""
    codes = {finding.code for finding in told}
    return [finding for finding in found if finding.code not in codes]


def locate(spec: BuildSpec) -> PreparedCheckpoint:
    """The directories a build would use, without preparing anything."""
    target = resolve_model(spec.target.model, spec.base_directory)
    if spec.draft.model is None:
        return PreparedCheckpoint(target, None)
    prepared = spec.build_directory / "draft"
    if spec.draft.method != "model" and (prepared / RECORD).is_file():
        return PreparedCheckpoint(target, prepared)
    return PreparedCheckpoint(target, resolve_model(spec.draft.model, spec.base_directory))


def _model_type(directory: Path) -> str | None:
    """What config.json calls the model, also where it is of a kind that is not read further."""
    try:
        named = read_raw_config(directory).get("model_type")
    except CheckpointError:
        return None
    return named if isinstance(named, str) else None


def _identified(
    directory: Path, identify_as: Callable[[Path], Identity], role: str, findings: list[Finding]
) -> Identity | None:
    try:
        return identify_as(directory)
    except CheckpointError as error:
        findings.append(
            Finding(
                f"{role}-unreadable",
                "error",
                str(error).replace("\n", " "),
                error.mend or "point the spec at a complete checkpoint directory",
                "neuron_spec.checkpoints.identify",
            )
        )
        return None
