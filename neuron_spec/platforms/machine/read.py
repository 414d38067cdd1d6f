"""A machine, read in about a second: everything that can be told without a device being opened."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from neuron_spec.platforms.machine.devices import read_devices
from neuron_spec.platforms.machine.facts import Disk, Machine, Package, System
from neuron_spec.platforms.machine.host import Host
from neuron_spec.platforms.neuron_packages import PLACEHOLDER_MARK

PACKAGES = (
    "neuronx-distributed-inference",
    "neuronx-distributed",
    "torch-neuronx",
    "neuronx-cc",
    "libneuronxla",
    "torch",
    "torch-xla",
    "transformers",
    "vllm",
    "vllm-neuron",
)
LIBRARY = "/opt/aws/neuron/lib/libnrt.so.1"
COMPILE_CACHE = "/var/tmp/neuron-compile-cache"  # SDK documentation, neuron-caching
_VARIABLES = re.compile(r"NEURON_\w+|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY", re.IGNORECASE)


def read_machine(host: Host | None = None, *, build: Path, network: bool = True) -> Machine:
    """Read everything.

    Args:
        build: folder that artifacts are written to; need not exist.
        network: whether the instance metadata service may be asked; it is only where nothing else
            tells the instance type.
    """
    host = host or Host()
    found, listed_type = read_devices(host)
    memory = _memory(host)
    return Machine(
        instance_type=listed_type or _product(host) or (_asked(host) if network else None),
        found=found,
        system=_system(host),
        packages=tuple(_packages(host)),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        environment=_environment(host.environment),
        disks=tuple(_disks(host, build)),
        memory_bytes=memory.get("MemTotal"),
        memory_free_bytes=memory.get("MemAvailable"),
        open_files=_open_files(),
    )


def _product(host: Host) -> str | None:
    """EC2's Nitro instances name their type as the product in DMI."""
    name = host.text("/sys/class/dmi/id/product_name")
    vendor = host.text("/sys/class/dmi/id/sys_vendor")
    return name if name and vendor == "Amazon EC2" else None


def _asked(host: Host) -> str | None:
    name = host.ec2("instance-type")
    return name if name and re.fullmatch(r"[a-z0-9-]+\.[a-z0-9-]+", name) else None


def _system(host: Host) -> System:
    return System(
        driver_loaded=host.text("/sys/module/neuron/version"),
        driver_package=_package_version(host, "aws-neuronx-dkms"),
        runtime_package=_package_version(host, "aws-neuronx-runtime-lib"),
        has_runtime_library=host.path(LIBRARY).exists(),
    )


def _package_version(host: Host, name: str) -> str | None:
    """By dpkg, else by rpm. dpkg also knows packages that were removed, without a version."""
    commands = (
        ("dpkg-query", "--show", "--showformat=${Status}\t${Version}", name),
        ("rpm", "--query", "--queryformat", "install ok installed\t%{VERSION}", name),
    )
    for command in commands:
        status, _, version = (host.run(command) or "").strip().partition("\t")
        if status == "install ok installed" and version:
            return version
    return None


def _packages(host: Host) -> Iterator[Package]:
    for name in PACKAGES:
        if (found := host.package(name)) is not None:
            version, description = found
            yield Package(name, version, PLACEHOLDER_MARK in description)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(variables.items())
        if _VARIABLES.fullmatch(name) and not _SECRET.search(name)
    }


def _disks(host: Host, build: Path) -> Iterator[Disk]:
    folders = {
        "artifacts": build,
        "compile cache": _compile_cache(host.environment),
        "Hugging Face cache": _hub_cache(host.environment),
    }
    for use, folder in folders.items():
        if folder is not None and (disk := _disk(use, folder)) is not None:
            yield disk


def _compile_cache(variables: Mapping[str, str]) -> Path | None:
    """None where it is a store in the cloud."""
    given = variables.get("NEURON_COMPILE_CACHE_URL", COMPILE_CACHE)
    if "://" in given:
        return Path(given.removeprefix("file://")) if given.startswith("file://") else None
    return Path(given)


def _hub_cache(variables: Mapping[str, str]) -> Path:
    """As huggingface_hub finds it."""
    if given := variables.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    home = variables.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"


def _disk(use: str, folder: Path) -> Disk | None:
    """Of the first of its parents that exists."""
    for path in (folder.absolute(), *folder.absolute().parents):
        try:
            usage = shutil.disk_usage(path)
            return Disk(use, str(folder), usage.free, usage.total, path.stat().st_dev)
        except OSError:
            continue
    return None


def _memory(host: Host) -> dict[str, int]:
    """/proc/meminfo in bytes, cut to what a container may use."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", host.text("/proc/meminfo") or "", re.MULTILINE)
    sizes = {name: int(size) << 10 for name, size in lines}
    limit = host.text("/sys/fs/cgroup/memory.max") or ""
    return {name: min(size, int(limit)) if limit.isdigit() else size
            for name, size in sizes.items()}  # fmt: skip


def _open_files() -> int | None:
    """None where the system has no such limit, or no limit is set."""
    if os.name != "posix":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
