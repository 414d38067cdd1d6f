"""One keyword's value with the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_spec.spec.schema import BuildSpec


@dataclass(frozen=True)
class Setting:
    """A keyword's value; `reason` is empty where the spec says it outright."""

    value: Any
    reason: str = ""


Settings = dict[str, Setting]


def passed_through(spec: BuildSpec) -> Settings:
    """What [neuron.config] says; `nxdi_pass_through` tells what it may say."""
    assert spec.neuron is not None
    return {name: Setting(value) for name, value in spec.neuron.config.items()}
