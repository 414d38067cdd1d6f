"""Disk, memory and open files, before anything is known of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neuron_spec.platforms.machine import Machine
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.machine.findings import GIB, error, gib, warning
from neuron_spec.preflight.machine.packages import concerns

_HERE = "neuron_spec.preflight.machine"
# Graphs of a small model with the compiler's logs: with less, hardly any compile ends.
_STOPS_BYTES = GIB
# The weights of an 8B target in bfloat16; who has less will meet the limit with the first model.
_TIGHT_BYTES = 16 * GIB
# One process opens weights, graphs and devices of all ranks; what Linux gives by default.
_FEW_FILES = 1024
_MANY_CORES = 8


def check_disks(machine: Machine) -> Iterator[Finding]:
    """Where artifacts, compiled graphs and downloaded models are written."""
    if not concerns(machine):
        return
    for disk in machine.disks:
        free = f"{disk.folder} ({disk.use}) has {gib(disk.free_bytes)} free"
        remedy = f"free space, or put the {disk.use} on a larger volume{_how(disk.use)}"
        if disk.free_bytes < _STOPS_BYTES:
            yield error("disk-full", free, remedy, _HERE)
        elif disk.free_bytes < _TIGHT_BYTES:
            yield warning(
                "disk-tight", f"{free}: less than the weights of an 8B model", remedy, _HERE
            )


def _how(use: str) -> str:
    return {
        "artifacts": ": neuron-spec compile --output FOLDER",
        "compile cache": " with NEURON_COMPILE_CACHE_URL",
        "Hugging Face cache": " with HF_HOME",
    }.get(use, "")


def check_memory(machine: Machine) -> Iterator[Finding]:
    """A container may see less than its instance has."""
    instance, total = machine.instance, machine.memory_bytes
    if instance is None or instance.host_gib is None or total is None:
        return
    if total < instance.host_gib * GIB / 2:
        yield warning(
            "memory-limited",
            f"{gib(total)} of {instance.name}'s {instance.host_gib} GiB of memory can be used here",
            "raise the container's memory limit: compiling and loading pass the weights through "
            "the host's memory",
            instance.source,
        )


def check_open_files(machine: Machine) -> Iterator[Finding]:
    """Loading many ranks opens many files."""
    limit = machine.open_files
    if limit is not None and limit <= _FEW_FILES and machine.cores > _MANY_CORES:
        yield warning(
            "open-files",
            f"a process may open {limit} files; tracing and loading for {machine.cores} cores may "
            "need more",
            "ulimit -n 65535",
            "AWS Neuron documentation, torch_neuronx.trace (Too Many Open Files)",
        )


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    check_disks,
    check_memory,
    check_open_files,
)
