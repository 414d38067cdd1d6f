"""All checks of a build, in one list: every finding is reported, not only the first."""

from __future__ import annotations

from pathlib import Path

from neuron_spec.checkpoints.identify import Identity, identify
from neuron_spec.checkpoints.prepare import RECORD, PreparedCheckpoint
from neuron_spec.checkpoints.source import resolve_model
from neuron_spec.errors import CheckpointError
from neuron_spec.preflight import architecture, pairing, provenance, shapes, vocabulary
from neuron_spec.preflight.findings import Finding
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
    target = _identified(prepared.target, "target", findings)
    findings += shapes.check_shapes(spec, target)
    if target:
        findings += architecture.check_target(target)
    if prepared.draft is not None:
        findings += provenance.check_sources(spec, prepared)
        draft = _identified(prepared.draft, "draft", findings)
        if draft:
            findings += architecture.check_draft(draft, spec)
        if draft and target:
            findings += pairing.check_pair(draft, target)
        if draft and target and spec.draft.method == "model":
            findings += vocabulary.check_draft_model(draft, target)
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])


def locate(spec: BuildSpec) -> PreparedCheckpoint:
    """The directories a build would use, without preparing anything."""
    target = resolve_model(spec.target.model, spec.base_directory)
    if spec.draft.model is None:
        return PreparedCheckpoint(target, None)
    prepared = spec.build_directory / "draft"
    if spec.draft.method != "model" and (prepared / RECORD).is_file():
        return PreparedCheckpoint(target, prepared)
    return PreparedCheckpoint(target, resolve_model(spec.draft.model, spec.base_directory))


def _identified(directory: Path, role: str, findings: list[Finding]) -> Identity | None:
    try:
        return identify(directory)
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
