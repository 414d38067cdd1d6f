"""Contradictions of checkpoints as findings: codes with the role, drafts as they would be used."""

from __future__ import annotations

from neuron_spec.checkpoints.contradictions import Contradiction, of_checkpoint, of_pair
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.preflight.findings import Finding

# Told with the lengths of the spec, see `shapes`, and with what is computed, see `architecture`.
_TOLD_ELSEWHERE = ("positions", "quantized-layers")


def check_one(identity: Identity, role: str) -> list[Finding]:
    """What one directory alone shows; `role` is `target` or `draft`."""
    return _as_findings(of_checkpoint(identity, is_draft=role == "draft"), role)


def check_pair(draft: Identity, target: Identity) -> list[Finding]:
    """What draft head and target show together."""
    return _as_findings(of_pair(draft, target), "draft")


def _as_findings(found: list[Contradiction], role: str) -> list[Finding]:
    return [
        Finding(
            f"{role}-{item.code}", item.severity, f"{role}: {item.message}", item.mend, item.source
        )
        for item in found
        if item.code not in _TOLD_ELSEWHERE
    ]
