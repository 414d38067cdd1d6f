"""Whether the Neuron packages of this environment are the real ones.

Public package indexes carry placeholders under the same names (`neuronx-distributed-inference`
0.1.0, `torch-neuronx` 1.0): they install, hold no code, and say "WRONG PACKAGE" in their
description. The real ones come from AWS's own index.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

# Lower bounds that no placeholder satisfies; the `neuron` extra in pyproject.toml uses the same.
OLDEST_REAL_VERSIONS = {"neuronx-distributed-inference": (0, 8), "torch-neuronx": (2, 8)}

PLACEHOLDER_MARK = "WRONG PACKAGE"


@dataclass(frozen=True)
class PackageState:
    """One Neuron package as found in this environment."""

    name: str
    state: Literal["absent", "placeholder", "too old", "ready"]
    version: str | None = None

    def __str__(self) -> str:
        version = f" {self.version}" if self.version else ""
        return f"{self.name}{version}: {self.state}"


def package_state(name: str) -> PackageState:
    """Tell an absent package, a placeholder, an old release and a usable one apart."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return PackageState(name, "absent")
    version = distribution.version
    description = str(distribution.metadata.get_payload() or "")  # type: ignore[attr-defined]
    if PLACEHOLDER_MARK in description:
        return PackageState(name, "placeholder", version)
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    is_old = release < OLDEST_REAL_VERSIONS[name]
    return PackageState(name, "too old" if is_old else "ready", version)


def neuron_packages() -> tuple[PackageState, ...]:
    """The state of every package that compiling for Neuron needs."""
    return tuple(package_state(name) for name in OLDEST_REAL_VERSIONS)
