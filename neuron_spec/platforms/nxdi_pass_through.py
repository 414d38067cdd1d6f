"""What a spec may pass through to NxDI's configuration classes: keywords that the target's family
knows in a release, and that no other field of the spec decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuron_spec.platforms.nxdi_keywords import (
    DECIDED_BY,
    FAMILY_SECTIONS,
    SAMPLING_DECIDED_BY,
    faults_of,
    keywords,
)
from neuron_spec.platforms.nxdi_models import FamilySupport


@dataclass(frozen=True)
class Fault:
    """One keyword that cannot be passed through.

    Attributes:
        section: the table of the spec, as neuron.config.
        decided_by: the field that decides it; empty where the keyword itself is wrong.
        message: what is wrong with it.
    """

    section: str
    name: str
    message: str
    decided_by: str = ""


def family_keywords(sdk: str, family: FamilySupport | None) -> dict[str, Any]:
    """Keyword -> default of what the family's NeuronConfig takes.

    Args:
        family: None if unknown: then what any family takes.
    """
    sections = FAMILY_SECTIONS if family is None else family.keyword_sections
    found = keywords("neuron_config", sdk)
    for section in sections:
        found |= keywords(section, sdk)
    return found


def pass_through_faults(
    tables: Mapping[str, Mapping[str, Any]], sdk: str, family: FamilySupport | None
) -> Iterator[Fault]:
    """Every keyword that is decided elsewhere, unknown, gone or of another type.

    Args:
        tables: `config`, `draft_config` and `sampling` of the spec's [neuron] table.
        family: NxDI's family of the target; None if unknown.
    """
    known, sampler = family_keywords(sdk, family), keywords("on_device_sampling_config", sdk)
    for table, names, decided in (
        ("config", known, DECIDED_BY),
        ("draft_config", known, DECIDED_BY),
        ("sampling", sampler, SAMPLING_DECIDED_BY),
    ):
        section, given = f"neuron.{table}", tables[table]
        for name in given:
            if name in decided:
                message = f"{section}.{name} is decided by {decided[name]}; leave it out here"
                yield Fault(section, name, message, decided[name])
        for name, value in given.items():
            if name not in decided:
                for fault in faults_of({name: value}, names):
                    yield Fault(section, name, f"{section}: {fault}")
