"""A bench of an artifact in process, from what a user names to a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.artifacts import Artifact, open_artifact
from neuron_spec.bench.baseline import baseline_record, check_baseline
from neuron_spec.bench.load import LoadSettings, measure_loads
from neuron_spec.bench.peers import PEERS, Peer
from neuron_spec.bench.record import record_of
from neuron_spec.bench.run import Run, run_of
from neuron_spec.bench.slices import rows_of
from neuron_spec.bench.steps import measure_step_costs, speculators_of
from neuron_spec.engine import Session, open_session
from neuron_spec.files import Progress, no_progress


@dataclass(frozen=True)
class Wanted:
    """What is measured.

    Attributes:
        off: the artifact of the target alone, if speculation is compared with that.
        peer: measured beside, see `PEERS`.
        prompts, kinds, limit: the workload, see `rows_of`.
        is_planned: whether a run without step costs is of no use.
    """

    off: Path | None = None
    peer: str | None = None
    no_steps: bool = False
    repetitions: int = 3
    concurrency: tuple[int, ...] = (1,)
    prompts: Path | None = None
    kinds: str | None = None
    limit: int | None = None
    is_planned: bool = False


def run_artifact(
    artifact: Artifact,
    wanted: Wanted,
    options: Mapping[str, Any],
    *,
    progress: Progress = no_progress,
) -> Run:
    """Measure, and put a run together; `options` are those of every request.

    Raises:
        UserError: `off` is no baseline, or a plan is wanted and nothing is off.
    """
    rows = rows_of(wanted.prompts, wanted.kinds, wanted.limit)
    record = record_of(artifact, rows, options)
    off = _baseline(artifact, wanted.off, record)
    session = open_session(artifact)
    if always := session.speculator.limits.always_drafts:
        record["draft"]["always_drafts"] = True
    if wanted.is_planned:
        speculators_of(session, off)  # told before the measurement
    settings = LoadSettings(wanted.concurrency, wanted.repetitions, dict(options))
    peer = _peer(wanted.peer, artifact)
    rounds = measure_loads(session, rows, settings, off=off, peer=peer, progress=progress)
    costs = None
    if not wanted.no_steps and (off is not None or not always):
        costs = measure_step_costs(session, rows, wanted.concurrency, off=off, progress=progress)
    return run_of(record, rows, rounds, costs)


def _baseline(artifact: Artifact, path: Path | None, record: dict[str, Any]) -> Session | None:
    if path is None:
        return None
    off = open_artifact(path)
    check_baseline(artifact, off)
    record["off"] = baseline_record(off)
    return open_session(off)


def _peer(name: str | None, artifact: Artifact) -> Peer | None:
    if name is None:
        return None
    reference = artifact.spec.reference
    return PEERS[name](
        artifact.model_directory("target"), dtype=reference.dtype, device=reference.device
    )
