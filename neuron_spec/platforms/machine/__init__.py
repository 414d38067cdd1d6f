"""What this machine is, for an accelerator instance: read, never changed; no torch."""

from __future__ import annotations

from neuron_spec.platforms.machine.facts import (
    Device,
    DevicesFound,
    Disk,
    Machine,
    Package,
    Process,
    System,
)
from neuron_spec.platforms.machine.host import Host
from neuron_spec.platforms.machine.read import read_machine

__all__ = [
    "Device",
    "DevicesFound",
    "Disk",
    "Host",
    "Machine",
    "Package",
    "Process",
    "System",
    "read_machine",
]
