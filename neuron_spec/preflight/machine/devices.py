"""Are there Neuron devices, can they be opened, are they all there, and is anybody on them?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neuron_spec.platforms.machine import Machine
from neuron_spec.platforms.neuron_sdk import numbers_of
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.machine.findings import DRIVER_SOURCE, SETUP, error, info, warning

_HERE = "neuron_spec.preflight.machine"
_LS = "AWS Neuron documentation, neuron-ls user guide"
_DRIVER = "sudo apt-get install aws-neuronx-dkms (or sudo dnf install aws-neuronx-dkms)"
_RELOAD = "end every process that uses Neuron, then: sudo rmmod neuron; sudo modprobe neuron"


def check_presence(machine: Machine) -> Iterator[Finding]:
    """No device: either no such instance, or no driver."""
    if machine.has_devices:
        return
    if machine.family is None:
        yield info(
            "no-device",
            "no Neuron device here: the reference backend runs every method on this machine",
            "to run on Neuron cores, use a trn or inf instance",
            _HERE,
        )
        return
    name = machine.instance_type or f"this {machine.family} instance"
    system = machine.system
    if system.driver_loaded is not None:
        yield error(
            "devices-missing",
            f"the Neuron driver {system.driver_loaded} is loaded on {name} and there is no "
            "/dev/neuron0",
            "in a container: start it with --device=/dev/neuron0 (every device it shall have); "
            f"else {_RELOAD}, and look at sudo dmesg",
            SETUP,
        )
    elif system.driver_package is not None:
        yield error(
            "driver-not-loaded",
            f"{name}: aws-neuronx-dkms {system.driver_package} is installed and not loaded",
            "sudo modprobe neuron; if that fails, install the kernel headers of `uname -r` and "
            "aws-neuronx-dkms again",
            DRIVER_SOURCE,
        )
    else:
        yield error(
            "driver-missing",
            f"{name} has Neuron chips and no Neuron driver: there is no /dev/neuron0",
            f"add AWS's Neuron repository and run {_DRIVER}; in a container: start it with "
            "--device=/dev/neuron0",
            SETUP,
        )


def device_required(machine: Machine) -> Finding:
    """What `--require-device` asks for."""
    where = machine.instance_type or machine.platform
    return error(
        "device-required",
        f"there is no /dev/neuron0 on this machine ({where})",
        "run on a trn or inf instance with the Neuron driver",
        _HERE,
    )


def check_chips(machine: Machine) -> Iterator[Finding]:
    """Inferentia 1 has other software altogether."""
    if machine.family == "inf1":
        yield error(
            "inf1",
            "this instance has Inferentia 1 chips, which NxD Inference does not know",
            "use an inf2, trn1, trn2 or trn3 instance",
            SETUP,
        )
    elif machine.family is not None and machine.instance_type and machine.instance is None:
        yield info(
            "instance-unknown",
            f"{machine.instance_type} is not in this version's table of instances: its cores and "
            "memory are not compared",
            "nothing to do",
            "neuron_spec.platforms.instances",
        )


def check_access(machine: Machine) -> Iterator[Finding]:
    """Device nodes that this user may not open."""
    if machine.found.unreadable:
        names = ", ".join(f"/dev/neuron{index}" for index in machine.found.unreadable[:3])
        more = len(machine.found.unreadable) - 3
        yield error(
            "device-access",
            f"this user may not open {names}" + (f" and {more} more" if more > 0 else ""),
            "run as a user who may, or let the udev rule of aws-neuronx-dkms give everybody access "
            "(install it again)",
            SETUP,
        )


def check_count(machine: Machine) -> Iterator[Finding]:
    """Fewer chips than the instance has: a container was given some, or some are broken."""
    instance, found = machine.instance, len(machine.found.nodes)
    if instance is not None and machine.has_devices and found != instance.num_chips:
        yield warning(
            "devices-fewer",
            f"{found} of the {instance.num_chips} Neuron devices of {instance.name} are here",
            "in a container: give it all devices, if it shall have them; else look at sudo dmesg",
            instance.source,
        )


def check_tools(machine: Machine) -> Iterator[Finding]:
    """Without neuron-ls nobody tells which cores are taken."""
    if machine.has_devices and machine.found.tool_problem is not None:
        yield warning(
            "tools",
            f"neuron-ls told nothing ({machine.found.tool_problem}): whether cores are in use is "
            "not known",
            "sudo apt-get install aws-neuronx-tools (or sudo dnf install aws-neuronx-tools), and "
            "put /opt/aws/neuron/bin on PATH",
            _LS,
        )


def check_processes(machine: Machine) -> Iterator[Finding]:
    """A core is not shared between processes."""
    busy = [device for device in machine.found.devices if device.processes]
    if not busy:
        return
    holders = {process.pid: process.command for device in busy for process in device.processes}
    shown = [f"{pid} ({name})" if name else str(pid) for pid, name in list(holders.items())[:3]]
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    yield warning(
        "devices-busy",
        f"{len(busy)} of {len(machine.found.devices)} devices are in use by process "
        f"{', '.join(shown)}{more}: loading a model on a core that is taken fails",
        "end those processes, or choose free cores with NEURON_RT_VISIBLE_CORES",
        DRIVER_SOURCE,
    )


def check_driver(machine: Machine) -> Iterator[Finding]:
    """After an update the old driver goes on running until it is loaded anew."""
    loaded, installed = machine.system.driver_loaded, machine.system.driver_package
    if loaded is None or installed is None or not machine.has_devices:
        return
    if numbers_of(loaded)[:3] != numbers_of(installed)[:3]:
        yield warning(
            "driver-reload",
            f"the driver that runs is {loaded}, the installed one {installed}",
            _RELOAD,
            DRIVER_SOURCE,
        )


def check_runtime(machine: Machine) -> Iterator[Finding]:
    """Tracing on an instance opens the runtime already."""
    system = machine.system
    if machine.has_devices and system.runtime_package is None and not system.has_runtime_library:
        yield error(
            "runtime-missing",
            "the Neuron runtime library (libnrt.so.1) is not installed; torch-neuronx needs it to "
            "trace and to run",
            "sudo apt-get install aws-neuronx-runtime-lib aws-neuronx-collectives (or sudo dnf "
            "install them)",
            SETUP,
        )


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    check_presence,
    check_chips,
    check_access,
    check_count,
    check_tools,
    check_processes,
    check_driver,
    check_runtime,
)
