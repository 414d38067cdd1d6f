"""All checks of a machine, in one list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neuron_spec.platforms.machine import Machine
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.machine import devices, packages, resources, variables

Check = Callable[[Machine], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    *devices.CHECKS,
    *packages.CHECKS,
    *variables.CHECKS,
    *resources.CHECKS,
)
_ORDER = {"error": 0, "warning": 1, "info": 2}


def examine(machine: Machine, *, require_device: bool = False) -> list[Finding]:
    """All findings about a machine, errors first.

    Args:
        require_device: whether it is an error that there is no Neuron device.
    """
    found = [finding for check in CHECKS for finding in check(machine)]
    if require_device and not machine.has_devices:
        found.append(devices.device_required(machine))
    return by_severity(found)


def by_severity(findings: list[Finding]) -> list[Finding]:
    """Errors first, else in their order."""
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])
