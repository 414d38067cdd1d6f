"""`neuron-spec doctor`: what this machine lacks for Neuron, in one screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_spec.cli.common import json_option, out, plain, print_findings, print_json

if TYPE_CHECKING:
    from neuron_spec.platforms.machine import Machine
    from neuron_spec.preflight.findings import Finding

_GIB = 1 << 30


@click.command(
    "doctor",
    short_help="Say what this machine lacks for Neuron, and whether a spec fits it.",
    epilog="Example: neuron-spec doctor compile/smollm2-135m-eagle.inf2.toml",
)
@click.argument("spec_path", metavar="[SPEC]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--require-device", is_flag=True, help="Exit with code 2 where there is no Neuron device."
)
@click.option(
    "--no-network", is_flag=True, help="Do not ask the EC2 metadata service for the instance type."
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    spec_path: Path | None,
    require_device: bool,
    no_network: bool,
    as_json: bool,
) -> None:
    """Say what this machine is and what it lacks for Neuron: devices, driver, runtime, packages
    that fit together and the chips, disk, memory.

    With SPEC, also whether this is the instance it is for and large enough. Exit code 2 if
    something would stop a compile for Neuron here; a machine without Neuron chips is no error.
    """
    from neuron_spec.platforms.machine import read_machine
    from neuron_spec.preflight.machine import by_severity, check_spec, examine
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path) if spec_path is not None else None
    build = spec.build_directory if spec is not None else Path("build")
    machine = read_machine(build=build, network=not no_network)
    findings = examine(machine, require_device=require_device)
    if spec is not None:
        findings = by_severity([*findings, *check_spec(machine, spec)])
    if as_json:
        print_json(
            {
                "machine": machine.as_dict(),
                "findings": [finding.as_dict() for finding in findings],
                "verdict": _verdict(machine, findings),
            }
        )
    else:
        _print(machine, findings)
    context.exit(2 if any(finding.severity == "error" for finding in findings) else 0)


def _print(machine: Machine, findings: list[Finding]) -> None:
    from rich.table import Table

    console = out()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _rows(machine):
        table.add_row(f"[bold]{name}[/]", plain(text))
    console.print(table)
    console.print()
    print_findings(findings)
    console.print(f"[bold]{plain(_verdict(machine, findings))}[/]")


def _verdict(machine: Machine, findings: list[Finding]) -> str:
    num_errors = sum(finding.severity == "error" for finding in findings)
    if num_errors:
        return f"{num_errors} thing(s) to mend before compiling for Neuron here"
    if machine.has_devices:
        return "ready to compile for Neuron and to run; next: make test-neuron"
    return "no Neuron device: prepare, check and the reference backend work here"


def _rows(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "instance", _instance(machine)
    yield "Neuron devices", _devices(machine)
    if machine.family is not None:
        system = machine.system
        yield "driver", system.driver_loaded or "not loaded"
        yield (
            "runtime library",
            system.runtime_package
            or ("installed by no package" if system.has_runtime_library else "not installed"),
        )
    yield "SDK", _sdk(machine)
    yield "packages", _packages(machine)
    yield "Python", f"{machine.python} on {machine.platform}"
    yield "memory", f"{_gib(machine.memory_free_bytes)} free of {_gib(machine.memory_bytes)}"
    for disk in machine.disks:
        yield disk.use, f"{disk.folder}: {_gib(disk.free_bytes)} free of {_gib(disk.total_bytes)}"
    variables = (f"{name}={value}" for name, value in machine.environment.items())
    yield "environment", ", ".join(variables) or "no variable of Neuron or Hugging Face is set"


def _instance(machine: Machine) -> str:
    if machine.instance_type is None:
        return f"{machine.family} (size unknown)" if machine.family else "not an EC2 instance"
    instance = machine.instance
    if instance is None:
        return machine.instance_type
    chips = f"{instance.num_chips} {instance.chip.name}, {instance.hbm_gib} GiB device memory"
    return f"{machine.instance_type}: {chips}"


def _devices(machine: Machine) -> str:
    nodes, devices = machine.found.nodes, machine.found.devices
    if not nodes:
        return "none"
    lncs = {device.lnc for device in devices} - {None}
    lnc = f" of {lncs.pop()} physical ones each" if len(lncs) == 1 else ""
    busy = sum(bool(device.processes) for device in devices)
    state = "not known whether in use" if machine.found.tool_problem else f"{busy} in use"
    return f"{len(nodes)}, {machine.cores} cores{lnc}, {state}"


def _sdk(machine: Machine) -> str:
    from neuron_spec.preflight.machine.packages import sdk_line

    return sdk_line(machine) or "no release recognised"


def _packages(machine: Machine) -> str:
    shown = (
        f"{package.name} {package.version}{' (placeholder)' if package.is_placeholder else ''}"
        for package in machine.packages
    )
    return ", ".join(shown) or "none of those that Neuron needs"


def _gib(num_bytes: Any) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / _GIB:.1f} GiB"
