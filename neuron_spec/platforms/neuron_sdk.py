"""Which versions of the Neuron packages one SDK release ships.

Sources: `src/helperscripts/n2-manifest.json` of aws-neuron/aws-neuron-sdk (packages and their
Python versions, SDK 2.26.0 to 2.31.1), and `setup.py` of NxD Inference 0.6 to 0.9 (transformers).
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "AWS Neuron SDK manifest (src/helperscripts/n2-manifest.json)"
PIN_SOURCE = "NxD Inference setup.py"

_BRIDGE = "torch-neuronx"
# They come from one pip environment and call each other's private parts.
PYTHON_PACKAGES = (
    "neuronx-distributed-inference",
    "neuronx-distributed",
    "torch-neuronx",
    "neuronx-cc",
)


@dataclass(frozen=True)
class SdkPackages:
    """One release line; versions are the leading numbers that all its patch releases share.

    Attributes:
        sdk: as in `nxdi_releases`.
        versions: package -> prefix of its version. Of torch-neuronx, what follows PyTorch's own
            three numbers.
        pythons: that its wheels are built for.
        torch: the newest PyTorch that it has a torch-neuronx for.
        transformers: what its NxDI pins; None where no source of it was read.
    """

    sdk: str
    versions: dict[str, str]
    pythons: tuple[str, ...]
    torch: str = "2.9.0"
    transformers: str | None = None

    def pip_pins(self) -> list[str]:
        """Requirements that install its Python packages."""
        versions = {**self.versions, "torch-neuronx": f"{self.torch}.{self.versions[_BRIDGE]}"}
        return [f"{package}=={versions[package]}.*" for package in PYTHON_PACKAGES]


def _line(
    sdk: str, numbers: tuple[int, int, int, int], nxd: str, nxdi: str
) -> tuple[str, dict[str, str]]:
    driver, runtime, compiler, torch_neuronx = numbers
    return sdk, {
        "aws-neuronx-dkms": f"2.{driver}",
        "aws-neuronx-runtime-lib": f"2.{runtime}",
        "neuronx-cc": f"2.{compiler}",
        "torch-neuronx": f"2.{torch_neuronx}",
        "neuronx-distributed": nxd,
        "neuronx-distributed-inference": nxdi,
    }


_UP_TO_311 = ("3.9", "3.10", "3.11")
_UP_TO_312 = ("3.10", "3.11", "3.12")
_UP_TO_313 = ("3.11", "3.12", "3.13")
LINES: dict[str, SdkPackages] = {
    line.sdk: line
    for line in (
        SdkPackages(*_line("2.26", (24, 28, 21, 10), "0.15", "0.6"), _UP_TO_311, "2.8.0", "4.51"),
        SdkPackages(
            *_line("2.27", (25, 29, 22, 11), "0.16", "0.7"), _UP_TO_312, transformers="4.56"
        ),
        SdkPackages(
            *_line("2.28", (26, 30, 23, 12), "0.17", "0.8"), _UP_TO_312, transformers="4.57"
        ),
        SdkPackages(
            *_line("2.29", (27, 31, 24, 13), "0.18", "0.9"), _UP_TO_312, transformers="4.57"
        ),
        SdkPackages(*_line("2.30", (28, 32, 25, 14), "0.19.28093", "0.10.17970"), _UP_TO_313),
        SdkPackages(*_line("2.31", (29, 33, 26, 15), "0.19.28492", "0.10.18399"), _UP_TO_313),
    )
}


def numbers_of(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, up to the first part that is none: 2.9.0.2.13.1+abc gives
    (2, 9, 0, 2, 13, 1)."""
    numbers = []
    for part in version.replace("+", ".").replace("-", ".").replace("~", ".").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def own_numbers(package: str, version: str) -> tuple[int, ...]:
    """Those that count SDK releases: torch-neuronx begins with PyTorch's own three."""
    numbers = numbers_of(version)
    return numbers[3:] if package == _BRIDGE else numbers


def lines_of(package: str, version: str) -> tuple[str, ...]:
    """SDK lines that ship this version of a package; empty: none that is known."""
    found = own_numbers(package, version)
    return tuple(line.sdk for line in LINES.values() if _starts(found, line.versions[package]))


def is_older(package: str, version: str, sdk: str) -> bool:
    """Whether a package is from a line before this one."""
    wanted = numbers_of(LINES[sdk].versions[package])
    return own_numbers(package, version)[: len(wanted)] < wanted


def torch_of(torch_neuronx: str) -> str:
    """The PyTorch release that a torch-neuronx is built for: 2.9 of 2.9.0.2.13.26312."""
    return ".".join(str(number) for number in numbers_of(torch_neuronx)[:2])


def has_release(version: str, release: str) -> bool:
    """Whether a version is of a release: 4.57.6 of 4.57."""
    return _starts(numbers_of(version), release)


def _starts(numbers: tuple[int, ...], prefix: str) -> bool:
    wanted = numbers_of(prefix)
    return numbers[: len(wanted)] == wanted
