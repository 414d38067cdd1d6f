"""Was the prepared draft made from the models that the spec names now?"""

from __future__ import annotations

from pathlib import Path

from neuron_spec.checkpoints.json_files import read_json
from neuron_spec.checkpoints.prepare import RECORD, PreparedCheckpoint
from neuron_spec.errors import CheckpointError
from neuron_spec.preflight.findings import Finding, error
from neuron_spec.spec.schema import BuildSpec


def check_sources(spec: BuildSpec, prepared: PreparedCheckpoint) -> list[Finding]:
    """A spec that was edited after `prepare` would otherwise silently get the earlier draft."""
    if prepared.draft is None or not (prepared.draft / RECORD).is_file():
        return []
    wanted = {"target": prepared.target, "draft": _named_draft(spec)}
    if wanted["draft"] == prepared.draft.resolve():
        return []  # the spec names a draft that was prepared elsewhere: nothing to compare
    recorded = _recorded(prepared.draft)
    return [
        error(
            "draft-stale",
            f"{prepared.draft} was prepared from the {role} {recorded.get(role)}, "
            f"the spec names {directory}",
            f"run: neuron-spec prepare {spec.base_directory / spec.name}.toml",
            "neuron_spec.checkpoints.prepare",
        )
        for role, directory in wanted.items()
        if directory is not None and recorded.get(role) != str(directory.absolute())
    ]


def _named_draft(spec: BuildSpec) -> Path | None:
    """The spec's draft if it is a directory; a hub id is not looked up for this."""
    path = spec.base_directory / Path(str(spec.draft.model)).expanduser()
    return path.resolve() if path.is_dir() else None


def _recorded(draft: Path) -> dict[str, str]:
    try:
        sources = read_json(draft / RECORD)["sources"]
        return {role: sources[role]["directory"] for role in ("draft", "target")}
    except (CheckpointError, KeyError, TypeError):
        return {}
