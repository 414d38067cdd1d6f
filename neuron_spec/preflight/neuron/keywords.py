"""Keywords that NxDI does not know, which it ignores, and those that the spec decides elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neuron_spec.platforms.nxdi_keywords import DECIDED_BY, SAMPLING_DECIDED_BY, faults_of, keywords
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error

_SOURCE = "NxDI models/config.py (unknown keywords are logged or ignored)"


def check_keywords(build: NeuronBuild) -> Iterator[Finding]:
    """Misspelt keywords would do nothing, and doubled ones contradict."""
    known, sampler = build.keywords, keywords("on_device_sampling_config", build.neuron.sdk)
    for table, given, names, decided_by in (
        ("config", build.neuron.config, known, DECIDED_BY),
        ("draft_config", build.neuron.draft_config, known, DECIDED_BY),
        ("sampling", build.neuron.sampling, sampler, SAMPLING_DECIDED_BY),
    ):
        yield from _check_table(f"neuron.{table}", given, names, decided_by)


def _check_table(
    section: str,
    given: Mapping[str, Any],
    known: Mapping[str, Any],
    decided_by: Mapping[str, str],
) -> Iterator[Finding]:
    for name in (name for name in given if name in decided_by):
        yield error(
            "keyword-decided",
            f"{section}.{name} is decided by {decided_by[name]}",
            f"leave {name} out of [{section}]",
            "neuron_spec.spec.neuron",
        )
    free = {name: value for name, value in given.items() if name not in decided_by}
    for fault in faults_of(free, known):
        yield error(
            "keyword",
            f"{section}: {fault}",
            "correct or remove it: NxDI would do without, and not say so",
            _SOURCE,
        )


CONSTRAINTS: tuple[Constraint, ...] = (check_keywords,)
