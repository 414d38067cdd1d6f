"""Are the Neuron packages the real ones, of one SDK release, and of one that this chip runs?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neuron_spec.platforms.machine import Machine
from neuron_spec.platforms.neuron_packages import OLDEST_REAL_VERSIONS
from neuron_spec.platforms.neuron_sdk import (
    LINES,
    PIN_SOURCE,
    PYTHON_PACKAGES,
    SOURCE,
    SdkPackages,
    has_release,
    is_older,
    lines_of,
    numbers_of,
    torch_of,
)
from neuron_spec.platforms.nxdi_releases import RELEASES
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.machine.findings import DRIVER_SOURCE, SETUP, error, info, warning

NXDI = "neuronx-distributed-inference"
_INDEX = "AWS's Neuron package index (its address is in the Neuron setup guide)"


def concerns(machine: Machine) -> bool:
    """Whether Neuron packages are of interest: on an instance, or where one was installed."""
    return machine.family is not None or any(
        package.name in PYTHON_PACKAGES for package in machine.packages
    )


def sdk_line(machine: Machine) -> str | None:
    """The SDK release line of the installed NxDI, else of the compiler; None if unknown."""
    for package in (NXDI, "neuronx-cc", "torch-neuronx"):
        if (version := machine.version(package)) and (lines := lines_of(package, version)):
            return lines[-1]
    return None


def fitting_line(machine: Machine) -> str | None:
    """The newest line whose NxDI was read here and runs on these chips."""
    lines = [
        sdk
        for sdk, release in RELEASES.items()
        if release.is_read and (machine.family is None or machine.family in release.chips)
    ]
    return lines[-1] if lines else None


def install_command(sdk: str) -> str:
    """How to get all Python packages of one line."""
    wanted = " ".join(f'"{pin}"' for pin in LINES[sdk].pip_pins())
    return f"pip install {wanted} from {_INDEX}"


def check_placeholders(machine: Machine) -> Iterator[Finding]:
    """Empty packages of the same names on public indexes."""
    fakes = [package for package in machine.packages if package.is_placeholder]
    if fakes:
        names = ", ".join(f"{package.name} {package.version}" for package in fakes)
        yield error(
            "placeholder",
            f"{names}: empty placeholders from a public package index, not AWS's packages",
            "pip uninstall " + " ".join(package.name for package in fakes)
            + f", then install from {_INDEX}",
            SETUP,
        )  # fmt: skip


def check_installed(machine: Machine) -> Iterator[Finding]:
    """What compiling needs, on a machine that is meant for it."""
    if not concerns(machine):
        return
    there = {package.name for package in machine.packages}
    missing = [name for name in PYTHON_PACKAGES if name not in there]
    line = sdk_line(machine) or fitting_line(machine)
    if missing and line is not None:
        yield error(
            "packages-missing",
            f"not installed in this Python environment: {', '.join(missing)}",
            f"activate the environment that has them, or {install_command(line)}",
            SETUP,
        )


def check_age(machine: Machine) -> Iterator[Finding]:
    """Releases before those this package was written for."""
    for name, oldest in OLDEST_REAL_VERSIONS.items():
        version = machine.version(name)
        if version is not None and numbers_of(version)[:2] < oldest:
            yield error(
                "package-old",
                f"{name} {version} is older than {'.'.join(map(str, oldest))}",
                f"install a newer SDK: {install_command(fitting_line(machine) or '2.29')}",
                "neuron_spec.platforms.neuron_packages",
            )


def check_one_sdk(machine: Machine) -> Iterator[Finding]:
    """The Python packages of one release belong together."""
    versions = {name: machine.version(name) for name in PYTHON_PACKAGES}
    installed = {name: version for name, version in versions.items() if version}
    lines = {name: set(lines_of(name, version)) for name, version in installed.items()}
    unknown = [f"{name} {installed[name]}" for name, found in lines.items() if not found]
    if unknown:
        yield warning(
            "sdk-unknown",
            f"{', '.join(unknown)}: not of an SDK release that this version knows "
            f"({', '.join(LINES)})",
            "compare the packages with the release notes of your SDK",
            SOURCE,
        )
    known = {name: found for name, found in lines.items() if found}
    if known and not set.intersection(*known.values()):
        parts = [f"{name} {installed[name]} (SDK {' or '.join(sorted(known[name]))})"
                 for name in known]  # fmt: skip
        line = sdk_line(machine)
        assert line is not None
        yield error(
            "sdk-mixed",
            f"packages of several SDK releases: {', '.join(parts)}",
            f"install one release: {install_command(line)}",
            SOURCE,
        )


def check_chips(machine: Machine) -> Iterator[Finding]:
    """From SDK 2.29 on, NxDI's models leave trn1 and inf2."""
    line, family = sdk_line(machine), machine.family
    release = RELEASES.get(line or "")
    if line is None or family is None or release is None or family in release.chips:
        return
    fitting = fitting_line(machine)
    if fitting is not None:
        yield error(
            "sdk-chips",
            f"NxDI of SDK {line} runs on {', '.join(release.chips)}; this machine has {family} "
            "chips",
            f"install SDK {fitting}: {install_command(fitting)}",
            release.source,
        )


def check_line_is_read(machine: Machine) -> Iterator[Finding]:
    """What is known of NxDI here comes from the source of two releases."""
    line = sdk_line(machine)
    release = RELEASES.get(line or "")
    if release is not None and not release.is_read:
        read = [sdk for sdk, other in RELEASES.items() if other.is_read]
        yield warning(
            "sdk-unread",
            f"this environment is of SDK {line}; what is known of NxDI here was read in SDK "
            f"{' and '.join(read)}",
            "verify what you compile before serving it, or use one of those",
            release.source,
        )


def check_torch(machine: Machine) -> Iterator[Finding]:
    """torch-neuronx is built for one PyTorch."""
    torch, bridge = machine.version("torch"), machine.version("torch-neuronx")
    if torch and bridge and not has_release(torch, torch_of(bridge)):
        yield error(
            "torch",
            f"torch {torch} with torch-neuronx {bridge}, which is built for torch "
            f"{torch_of(bridge)}",
            f'pip install "torch=={torch_of(bridge)}.*"',
            SOURCE,
        )


def check_transformers(machine: Machine) -> Iterator[Finding]:
    """NxDI pins a release; others move what it imports."""
    line, version = _line(machine), machine.version("transformers")
    pin = line.transformers if line else None
    if machine.version(NXDI) and version and pin and not has_release(version, pin):
        yield error(
            "transformers",
            f"transformers {version} with NxDI {machine.version(NXDI)}, which takes {pin}",
            f'pip install "transformers=={pin}.*"',
            PIN_SOURCE,
        )


def check_python(machine: Machine) -> Iterator[Finding]:
    """Wheels exist for some Pythons."""
    line = _line(machine) or LINES.get(fitting_line(machine) or "")
    release = ".".join(machine.python.split(".")[:2])
    if not concerns(machine) or line is None or not release or release in line.pythons:
        return
    yield error(
        "python",
        f"Python {machine.python}: SDK {line.sdk} has packages for {', '.join(line.pythons)}",
        f"make an environment with Python {line.pythons[-1]}",
        SOURCE,
    )


def check_driver(machine: Machine) -> Iterator[Finding]:
    """A driver serves older runtimes, not newer ones."""
    line, driver, runtime = sdk_line(machine), machine.system.driver, machine.system.runtime_package
    runtime_lines = lines_of("aws-neuronx-runtime-lib", runtime) if runtime else ()
    needed = runtime_lines[-1] if runtime_lines else line
    if driver and needed and is_older("aws-neuronx-dkms", driver, needed):
        yield warning(
            "driver-old",
            f"driver {driver} is older than SDK {needed}'s {_shipped('aws-neuronx-dkms', needed)}: "
            "the runtime may refuse it when a model is loaded",
            "update aws-neuronx-dkms on the host (in a container: not inside it), and load it anew",
            DRIVER_SOURCE,
        )
    if runtime and line and is_older("aws-neuronx-runtime-lib", runtime, line):
        yield warning(
            "runtime-old",
            f"runtime library {runtime} is older than SDK {line}'s "
            f"{_shipped('aws-neuronx-runtime-lib', line)}",
            "update aws-neuronx-runtime-lib and aws-neuronx-collectives",
            SOURCE,
        )


def check_vllm(machine: Machine) -> Iterator[Finding]:
    """Serving by vLLM is a choice."""
    if concerns(machine) and machine.version("vllm") and not machine.version("vllm-neuron"):
        yield info(
            "vllm-plain",
            f"vllm {machine.version('vllm')} is here without vllm-neuron, which it needs to use "
            "Neuron cores",
            "nothing to do, unless vLLM shall serve: then install vllm-neuron",
            "neuron_spec.export",
        )


def _shipped(package: str, sdk: str) -> str:
    return f"{LINES[sdk].versions[package]}.*"


def _line(machine: Machine) -> SdkPackages | None:
    return LINES.get(sdk_line(machine) or "")


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    check_placeholders,
    check_installed,
    check_age,
    check_one_sdk,
    check_chips,
    check_line_is_read,
    check_torch,
    check_transformers,
    check_python,
    check_driver,
    check_vllm,
)
