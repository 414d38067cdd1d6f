"""One keyword's value with the reason for it; and whose the decision is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuron_spec.platforms.nxdi_keywords import (
    DECIDED_BY,
    SAMPLING_DECIDED_BY,
    faults_of,
    keywords,
)
from neuron_spec.spec.schema import BuildSpec


@dataclass(frozen=True)
class Setting:
    """A keyword's value; `reason` is empty where the spec says it outright."""

    value: Any
    reason: str = ""


Settings = dict[str, Setting]


def passed_through(spec: BuildSpec) -> Settings:
    """What [neuron.config] says; see `pass_through_faults` for what it may say."""
    assert spec.neuron is not None
    return {name: Setting(value) for name, value in spec.neuron.config.items()}


def pass_through_faults(spec: BuildSpec, *, has_experts: bool | None) -> Iterator[str]:
    """Keywords that the release does not know, or that another field of the spec decides.

    Args:
        has_experts: whether the target is a mixture of experts; None if unknown.
    """
    neuron = spec.neuron
    assert neuron is not None
    known = keywords("neuron_config", neuron.sdk)
    if has_experts is not False:
        known |= keywords("moe_neuron_config", neuron.sdk)
    sampling = keywords("on_device_sampling_config", neuron.sdk)
    for table, given, names, decided in (
        ("config", neuron.config, known, DECIDED_BY),
        ("draft_config", neuron.draft_config, known, DECIDED_BY),
        ("sampling", neuron.sampling, sampling, SAMPLING_DECIDED_BY),
    ):
        section = f"neuron.{table}"
        yield from _decided(section, given, decided)
        free = {name: value for name, value in given.items() if name not in decided}
        yield from (f"{section}: {fault}" for fault in faults_of(free, names))


def _decided(section: str, given: Mapping[str, Any], decided: Mapping[str, str]) -> Iterator[str]:
    for name in given:
        if name in decided:
            yield f"{section}.{name}: decided by {decided[name]}; leave it out here"
