"""Keywords that NxDI does not know, which it ignores, and those that the spec decides elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.platforms.nxdi_pass_through import pass_through_faults
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error

_SOURCE = "NxDI models/config.py (unknown keywords are logged or ignored)"


def check_keywords(build: NeuronBuild) -> Iterator[Finding]:
    """Misspelt keywords would do nothing, and doubled ones contradict."""
    for fault in pass_through_faults(build.neuron.tables, build.neuron.sdk, build.family):
        if fault.decided_by:
            yield error(
                "keyword-decided",
                fault.message,
                f"leave {fault.name} out of [{fault.section}]",
                "neuron_spec.spec.neuron",
            )
        else:
            yield error(
                "keyword",
                fault.message,
                "correct or remove it: NxDI would do without, and not say so",
                _SOURCE,
            )


CONSTRAINTS: tuple[Constraint, ...] = (check_keywords,)
