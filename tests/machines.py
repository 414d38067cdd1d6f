"""Machines that are not here: a folder for their /dev, /proc and /sys, and their commands' output.

The three forms of `neuron-ls --json-output` are those that the tool prints: with the runtime of
2022 (no core ids), on trn1 and inf2 with SDK 2.28, and on trn2 with SDK 2.29.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from neuron_spec.platforms.machine import Host

NXDI = "neuronx-distributed-inference"
# Of SDK 2.28.1 and 2.29.1, as their manifest lists them; the hashes behind are made up.
SDK_228 = {
    NXDI: "0.8.16251+f3ca5575",
    "neuronx-distributed": "0.17.26814+4b0a7bd5",
    "torch-neuronx": "2.9.0.2.12.22436+0f1dac25",
    "neuronx-cc": "2.23.6484.0+3b612583",
    "libneuronxla": "2.2.15515.0+50c26cbd",
    "torch": "2.9.1",
    "transformers": "4.57.6",
}
SDK_229 = {
    NXDI: "0.9.17334+8e870898",
    "neuronx-distributed": "0.18.27753+7dfbd4b3",
    "torch-neuronx": "2.9.0.2.13.26312+8e870898",
    "neuronx-cc": "2.24.8799.0+6f62ff7c",
    "libneuronxla": "2.2.16408.0+50c26cbd",
    "torch": "2.9.1",
    "transformers": "4.57.6",
}
SYSTEM_228 = {"aws-neuronx-dkms": "2.26.10.0", "aws-neuronx-runtime-lib": "2.30.51.0-5c4d4e2a1"}
SYSTEM_229 = {"aws-neuronx-dkms": "2.27.4.0", "aws-neuronx-runtime-lib": "2.31.24.0-0b044f4ce"}
PCI = {"trn1": "0x7164", "inf2": "0x7264", "trn2": "0x7364", "inf1": "0x7064"}


def trn1_device(index: int) -> dict[str, Any]:
    """trn1 and inf2: no instance type, no logical cores."""
    return {
        "neuron_device": index,
        "bdf": f"0000:{0x10 + index:02x}:1e.0",
        "cpu_affinity": "0-7",
        "numa_node": "-1",
        "connected_to": None,
        "nc_count": 2,
        "memory_size": 34359738368,
        "neuroncore_ids": [2 * index, 2 * index + 1],
        "neuron_processes": [],
    }


def trn2_device(index: int) -> dict[str, Any]:
    """trn2: cores are logical ones."""
    return {
        "instance_type": "trn2.48xlarge",
        "instance_id": "i-0123456789abcdef0",
        "neuron_device": index,
        "bdf": f"0000:{0xCC + index:02x}:00.0",
        "cpu_affinity": "48-95,144-191",
        "numa_node": "1",
        "connected_to": [(index + 1) % 16, (index - 1) % 16, (index + 4) % 16, (index - 4) % 16],
        "nc_count": 4,
        "logical_neuroncore_config": 2,
        "memory_size": 103079215104,
        "neuroncore_ids": [4 * index + core for core in range(4)],
        "neuron_processes": [],
    }


@dataclass(frozen=True)
class Fake:
    """A machine as described; `host` writes it down.

    Attributes:
        listed: what `neuron-ls` prints; None where it is not installed.
        loaded: version of the loaded driver.
        system: Debian packages.
        rpms: the same on a Red Hat machine.
        packages: Python packages; a description may follow the version after a bar.
    """

    instance_type: str | None
    family: str
    num_devices: int
    listed: str | None
    loaded: str | None
    memory_gib: int
    system: dict[str, str] = field(default_factory=dict)
    rpms: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    metadata_type: str | None = None
    cgroup_limit: str | None = None

    def but(self, **changes: Any) -> Fake:
        """The same with changes."""
        return replace(self, **changes)

    def busy(self, *indices: int, pid: int = 113985) -> Fake:
        """The same with a process on some devices, and neuron-ls itself on all."""
        rows = json.loads(self.listed or "[]")
        for row in rows:
            row["neuron_processes"] = [{"pid": 7, "command": "neuron-ls --json-output"}]
            if row["neuron_device"] in indices:
                row["neuron_processes"].append(
                    {"pid": pid, "command": "python serve.py", "neuron_runtime_version": "2.31.24"}
                )
        return self.but(listed=json.dumps(rows))

    def host(self, root: Path) -> Host:
        """Write /dev, /proc and /sys below a folder."""
        for index in range(self.num_devices):
            _write(root / f"dev/neuron{index}", "")
            driver = root / f"sys/devices/virtual/neuron_device/neuron{index}"
            _write(driver / "core_count", "8\n" if self.family == "trn2" else "2\n")
            kind = self.family.capitalize()
            _write(driver / "info/architecture/instance_type", f"{kind}\n")
        _write(root / "dev/neuron_monitor", "")
        if self.family:
            slot = root / "sys/bus/pci/devices/0000:10:1e.0"
            _write(slot / "vendor", "0x1d0f\n")
            _write(slot / "device", f"{PCI[self.family]}\n")
        if self.loaded:
            _write(root / "sys/module/neuron/version", f"{self.loaded}\n")
        if self.instance_type:
            _write(root / "sys/class/dmi/id/sys_vendor", "Amazon EC2\n")
            _write(root / "sys/class/dmi/id/product_name", f"{self.instance_type}\n")
        kib = self.memory_gib << 20
        _write(root / "proc/meminfo", f"MemTotal: {kib} kB\nMemAvailable:   {kib // 2} kB\n")
        if self.cgroup_limit:
            _write(root / "sys/fs/cgroup/memory.max", f"{self.cgroup_limit}\n")
        return Host(root, self._run, self._ec2, self._package, self.environment)

    def _run(self, command: Sequence[str]) -> str | None:
        if command[0] == "/opt/aws/neuron/bin/neuron-ls":
            return self.listed
        versions = {"dpkg-query": self.system, "rpm": self.rpms}.get(command[0], {})
        version = versions.get(command[-1])
        return f"install ok installed\t{version}" if version else None

    def _ec2(self, path: str) -> str | None:
        return self.metadata_type if path == "instance-type" else None

    def _package(self, name: str) -> tuple[str, str] | None:
        if name not in self.packages:
            return None
        version, _, description = self.packages[name].partition("|")
        return version, description


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def without(versions: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: version for name, version in versions.items() if name not in names}


TRN1 = Fake(
    "trn1.32xlarge", "trn1", 16, json.dumps([trn1_device(i) for i in range(16)]), "2.26.10.0", 512,
    system=SYSTEM_228, packages=SDK_228,
)  # fmt: skip
TRN2 = Fake(
    "trn2.48xlarge", "trn2", 16, json.dumps([trn2_device(i) for i in range(16)]), "2.27.4.0", 2048,
    system=SYSTEM_229, packages=SDK_229,
)  # fmt: skip
INF2 = Fake(
    "inf2.xlarge", "inf2", 1, json.dumps([trn1_device(0)]), "2.26.10.0", 16,
    system=SYSTEM_228, packages=SDK_228,
)  # fmt: skip
LAPTOP = Fake(None, "", 0, None, None, 16, packages={"torch": "2.13.0", "transformers": "5.0.0"})
