"""What was read of a machine: plain data that findings are made from."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from neuron_spec.platforms.instances import INSTANCES, Instance


@dataclass(frozen=True)
class Process:
    """A process that holds a device."""

    pid: int
    command: str = ""


@dataclass(frozen=True)
class Device:
    """One chip.

    Attributes:
        cores: as `neuron-ls` counts them: logical ones where chips have them.
        lnc: physical cores a logical core; None where the tool does not tell (trn1, inf2).
        memory_bytes: device memory; None where only the driver was asked, which does not tell.
    """

    index: int
    cores: int
    lnc: int | None = None
    memory_bytes: int | None = None
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class DevicesFound:
    """Chips, and how they were found.

    Attributes:
        nodes: numbers of /dev/neuron*, in order.
        unreadable: those that this user may not open.
        devices: what `neuron-ls`, else the driver's sysfs, tells about them.
        pci_family: family by PCI id, also where there is no driver; None without such a chip.
        driver_family: what the driver calls the chips (inf2, trn1, ...), None if it does not say.
        tool_problem: why `neuron-ls` told nothing; None if it answered.
    """

    nodes: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    devices: tuple[Device, ...] = ()
    pci_family: str | None = None
    driver_family: str | None = None
    tool_problem: str | None = None


@dataclass(frozen=True)
class Package:
    """An installed package; `is_placeholder`: an empty one of the same name."""

    name: str
    version: str
    is_placeholder: bool = False


@dataclass(frozen=True)
class System:
    """Driver and runtime.

    Attributes:
        driver_loaded: version of the loaded kernel module.
        driver_package: version of the installed driver package.
        runtime_package: version of the installed runtime library's package.
        has_runtime_library: whether libnrt.so.1 lies where that package puts it.
    """

    driver_loaded: str | None = None
    driver_package: str | None = None
    runtime_package: str | None = None
    has_runtime_library: bool = False

    @property
    def driver(self) -> str | None:
        """The version that runs; the installed one where none does."""
        return self.driver_loaded or self.driver_package


@dataclass(frozen=True)
class Disk:
    """The file system behind a folder; sizes in bytes.

    Attributes:
        use: what is written there.
        device: number of the file system, so that two folders on one are not counted twice.
    """

    use: str
    folder: str
    free_bytes: int
    total_bytes: int
    device: int = 0


@dataclass(frozen=True)
class Machine:
    """Everything that was read.

    Attributes:
        instance_type: of EC2; None if it is no instance, or cannot be told.
        environment: the variables that decide how Neuron software compiles and runs.
        memory_bytes: of the host, with what is free of it; None where the system does not tell.
        open_files: how many files a process may open.
        platform: of the operating system and processor, as Linux x86_64.
    """

    instance_type: str | None = None
    found: DevicesFound = DevicesFound()
    system: System = System()
    packages: tuple[Package, ...] = ()
    python: str = ""
    platform: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    open_files: int | None = None

    @property
    def instance(self) -> Instance | None:
        """Of the table; None where the type is not in it."""
        return INSTANCES.get(self.instance_type or "")

    @property
    def has_devices(self) -> bool:
        """Whether a Neuron device can be opened, or is at least there."""
        return bool(self.found.nodes)

    @property
    def family(self) -> str | None:
        """Of its chips: inf2, trn1, trn2 or trn3; None where there is none."""
        if self.instance is not None:
            return self.instance.family
        named = re.match(r"(inf|trn)\d", self.instance_type or "")
        return self.found.driver_family or self.found.pci_family or (named and named[0])

    @property
    def cores(self) -> int:
        """Logical cores that were found."""
        return sum(device.cores for device in self.found.devices)

    def version(self, package: str) -> str | None:
        """Of an installed Python package that is not a placeholder."""
        found = (p for p in self.packages if p.name == package and not p.is_placeholder)
        return next((package.version for package in found), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "family": self.family, "cores": self.cores}
