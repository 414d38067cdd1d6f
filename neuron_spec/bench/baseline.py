"""The artifact of the target alone, where an artifact cannot switch its speculation off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuron_spec.artifacts import Artifact
from neuron_spec.bench.compare import difference
from neuron_spec.bench.record import machine_of, precision_of, weights_of
from neuron_spec.errors import UserError


def check_baseline(artifact: Artifact, off: Artifact) -> None:
    """Whether `off` is the same target on the same machine, without speculation.

    Raises:
        UserError: it is not; all differences are named.
    """
    faults = list(_faults(artifact, off))
    if faults:
        raise UserError(
            "\n  ".join(["cannot be what speculation is compared with", *faults]),
            where=off.directory,
            mend="compile the same target for the same machine with draft.method 'none'",
        )


def baseline_record(off: Artifact) -> dict[str, Any]:
    """What a run tells of it."""
    manifest = off.manifest
    return {
        "name": manifest.name,
        "fingerprint": manifest.fingerprint,
        "shape": off.spec.shape.model_dump(),
    }


def _faults(artifact: Artifact, off: Artifact) -> Iterator[str]:
    manifest, other = artifact.manifest, off.manifest
    if other.speculation:
        yield f"draft.method: it drafts with '{off.spec.draft.method}'"
    own, target = manifest.models["target"], other.models["target"]
    if weights_of(own) != weights_of(target):
        yield f"target: other weights, of {target.source}; the artifact's are of {own.source}"
    for name, found, expected in (
        ("backend", other.backend, manifest.backend),
        ("precision", precision_of(off), precision_of(artifact)),
        ("machine", machine_of(off), machine_of(artifact)),
        ("libraries", other.libraries, manifest.libraries),
    ):
        if found != expected:
            yield f"{name}: {difference(found, expected)}"
