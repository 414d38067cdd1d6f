"""Can this machine compile, or only check and prepare? Told, never refused: most builds are written
and checked where no Neuron package is."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.platforms.neuron_packages import neuron_packages
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.findings import info, warning

_SOURCE = "neuron_spec.platforms.neuron_packages"


def check_packages() -> Iterator[Finding]:
    """Packages that are not here are worth knowing; those that look as if they were, a warning."""
    states = neuron_packages()
    odd = [str(package) for package in states if package.state in ("placeholder", "too old")]
    absent = [package.name for package in states if package.state == "absent"]
    if odd:
        yield warning(
            "packages",
            f"compile would stop here: {'; '.join(odd)} (placeholders of public indexes hold no "
            "code)",
            "on the instance, install the packages of AWS's own index; here, remove them: check "
            "and prepare need none",
            _SOURCE,
        )
    elif absent:
        yield info(
            "packages",
            f"{', '.join(absent)}: not installed on this machine, which can check and prepare the "
            "build; compile it where they are",
            "run neuron-spec compile on the instance, or in a Neuron container",
            _SOURCE,
        )
