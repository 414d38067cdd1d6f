"""Environment variables that decide how Neuron software compiles and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neuron_spec.platforms.instances import CHIPS, LNC_SOURCE
from neuron_spec.platforms.machine import Machine
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.machine.findings import warning

COMPILES = "NEURON_LOGICAL_NC_CONFIG"
RUNS = "NEURON_RT_VIRTUAL_CORE_SIZE"
OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"
VISIBLE, COUNT = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"
_CORES = "AWS Neuron documentation, neuron-runtime configurable parameters"


def check_lnc(machine: Machine) -> Iterator[Finding]:
    """What was compiled for logical cores of one size does not run on those of another."""
    compiles, runs = machine.environment.get(COMPILES), machine.environment.get(RUNS)
    if compiles and runs and compiles != runs:
        yield warning(
            "lnc-variables",
            f"{COMPILES}={compiles} is used to compile and {RUNS}={runs} to run: the runtime "
            "refuses graphs of other logical cores",
            "set both to the same, or neither",
            LNC_SOURCE,
        )
    chip = next((chip for chip in CHIPS if chip.family == machine.family), None)
    for name, value in ((COMPILES, compiles), (RUNS, runs)):
        if chip is not None and value and value not in map(str, chip.lncs):
            yield warning(
                "lnc-value",
                f"{name}={value}: {chip.name} has logical cores of "
                f"{' or '.join(map(str, sorted(chip.lncs)))} physical ones",
                f"unset {name}",
                LNC_SOURCE,
            )


def check_override(machine: Machine) -> Iterator[Finding]:
    """NxDI compiles for the platform that this names."""
    named = machine.environment.get(OVERRIDE)
    if named and machine.family and not named.startswith(machine.family):
        yield warning(
            "platform-override",
            f"{OVERRIDE}={named}: graphs are compiled for {named} and will not load on the "
            f"{machine.family} chips here",
            f"unset {OVERRIDE}, unless you compile for another machine",
            "NxDI models/config.py (_setup_kernel_target_platform)",
        )


def check_cores(machine: Machine) -> Iterator[Finding]:
    """A list that names cores which are not there."""
    text = machine.environment.get(VISIBLE)
    if not text:
        return
    cores = visible_cores(text)
    if cores is None:
        yield warning(
            "visible-cores",
            f"{VISIBLE}={text} is not a list of cores",
            f"write it as 0-3 or 0,1,2,3, or unset {VISIBLE}",
            _CORES,
        )
    elif machine.cores and (beyond := [core for core in cores if core >= machine.cores]):
        yield warning(
            "visible-cores",
            f"{VISIBLE}={text} names core {beyond[0]}; there are {machine.cores} logical cores "
            "here, counted from 0",
            f"name existing cores, or unset {VISIBLE}",
            _CORES,
        )


def visible_cores(text: str) -> tuple[int, ...] | None:
    """`0-3,8` as (0, 1, 2, 3, 8); None if it is not such a list."""
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return None
        cores += range(int(first), int(last if dash else first) + 1)
    return tuple(cores)


def usable_cores(machine: Machine) -> int | None:
    """Logical cores that a process of this environment may take; None if nothing tells."""
    counts = [machine.cores] if machine.cores else []
    if (listed := visible_cores(machine.environment.get(VISIBLE, ""))) is not None:
        counts.append(len(listed))
    count = machine.environment.get(COUNT, "")
    if count.isdigit():
        counts.append(int(count))
    return min(counts, default=None)


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    check_lnc,
    check_override,
    check_cores,
)
