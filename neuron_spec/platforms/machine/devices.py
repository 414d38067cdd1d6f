"""Neuron devices: /dev, `neuron-ls --json-output`, the driver's sysfs, and PCI ids.

`neuron-ls` has printed three forms of its list over the years, each with more fields than the one
before (core ids, then instance type and logical cores); fields that are not there stay unknown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from neuron_spec.platforms.machine.facts import Device, DevicesFound, Process
from neuron_spec.platforms.machine.host import Host

_SYSFS = "/sys/devices/virtual/neuron_device"
_COMMANDS = ("neuron-ls", "/opt/aws/neuron/bin/neuron-ls")
# Amazon's PCI vendor id, and its Neuron chips (aws-neuron-driver, neuron_device.h).
_VENDOR = "0x1d0f"
_PCI_FAMILIES = {
    "0x7064": "inf1",
    "0x7065": "inf1",
    "0x7066": "inf1",
    "0x7067": "inf1",
    "0x7164": "trn1",
    "0x7264": "inf2",
    "0x7364": "trn2",
    "0x7564": "trn3",
    "0x7565": "trn3",
}


def read_devices(host: Host) -> tuple[DevicesFound, str | None]:
    """All that is to be found of devices, and the instance type if `neuron-ls` tells it."""
    nodes = _nodes(host)
    output = next((text for command in _COMMANDS if (text := _listed(host, command))), None)
    devices, instance_type, problem = _parsed(output) if nodes else ((), None, None)
    found = DevicesFound(
        nodes,
        tuple(n for n in nodes if not os.access(host.path(f"/dev/neuron{n}"), os.R_OK | os.W_OK)),
        devices or _from_driver(host, nodes),
        _pci_family(host),
        _driver_family(host),
        problem,
    )
    return found, instance_type


def _listed(host: Host, command: str) -> str | None:
    return host.run((command, "--json-output"))


def _nodes(host: Host) -> tuple[int, ...]:
    """/dev/neuron0 and so on; with other names nothing is called after a device's number."""
    matches = (re.fullmatch(r"neuron(\d+)", name) for name in host.names("/dev"))
    return tuple(sorted(int(match[1]) for match in matches if match))


def _parsed(output: str | None) -> tuple[tuple[Device, ...], str | None, str | None]:
    if output is None:
        return (), None, "it is not installed, or it failed"
    try:
        return (*parse_neuron_ls(output), None)
    except ValueError as error:
        return (), None, f"its output is not understood: {error}"


def parse_neuron_ls(output: str) -> tuple[tuple[Device, ...], str | None]:
    """Devices and the instance type out of `neuron-ls --json-output`.

    Raises:
        ValueError: it is not a JSON list of devices.
    """
    rows = json.loads(output)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected a list of devices")
    types = [row.get("instance_type") for row in rows]
    instance_type = next((kind for kind in types if isinstance(kind, str) and kind), None)
    return tuple(_device(row) for row in rows), instance_type


def _device(row: dict[str, Any]) -> Device:
    ids = row.get("neuroncore_ids")
    cores = len(ids) if isinstance(ids, list) else _integer(row, "nc_count")
    if cores is None or (index := _integer(row, "neuron_device")) is None:
        raise ValueError("a device without neuron_device and nc_count")
    return Device(
        index,
        cores,
        _integer(row, "logical_neuroncore_config"),
        _integer(row, "memory_size"),
        tuple(_processes(row.get("neuron_processes") or ())),
    )


def _integer(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    return value if type(value) is int else None


def _processes(rows: Sequence[Any]) -> list[Process]:
    """All but the tool itself, which some versions list."""
    return [
        Process(int(row["pid"]), str(row.get("command") or ""))
        for row in rows
        if isinstance(row, dict)
        and type(row.get("pid")) is int
        and not str(row.get("command") or "").startswith("neuron-ls")
    ]


def _from_driver(host: Host, nodes: tuple[int, ...]) -> tuple[Device, ...]:
    """Physical cores by `core_count`; nothing is known of processes."""
    counts = {index: host.text(f"{_SYSFS}/neuron{index}/core_count") for index in nodes}
    return tuple(
        Device(index, int(count)) for index, count in counts.items() if count and count.isdigit()
    )


def _driver_family(host: Host) -> str | None:
    text = host.text(f"{_SYSFS}/neuron0/info/architecture/instance_type")
    match = re.match(r"(inf|trn)(\d)", text.lower()) if text else None
    return match[0] if match else None


def _pci_family(host: Host) -> str | None:
    """The family of the first chip on the PCI bus, with or without a driver."""
    for slot in host.names("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{slot}"
        if host.text(f"{folder}/vendor") == _VENDOR:
            family = _PCI_FAMILIES.get(host.text(f"{folder}/device") or "")
            if family:
                return family
    return None
