"""Where the smoke tests run: on a Neuron device with NxDI (`make test-neuron`), and in the ordinary
suite on a double of NxDI that computes on the CPU, so that the tests themselves are tested."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nxdi_double
import pytest
from neuron_smoke import Artifacts, Open, Place
from nxdi_double.forward import Emulation

from neuron_spec.engine import Session
from neuron_spec.engine.tokenizer import Tokenizer
from neuron_spec.platforms.machine import Machine, read_machine
from neuron_spec.platforms.neuron_packages import neuron_packages
from neuron_spec.preflight.machine.packages import sdk_line

_SLOW_S = 7200  # a fresh instance compiles two graphs a build
DEVICE = pytest.param(
    "device",
    marks=[
        pytest.mark.neuron,
        pytest.mark.timeout(_SLOW_S),
        pytest.mark.filterwarnings("default"),  # NxDI and its libraries warn about themselves
    ],
)


@pytest.fixture(scope="module", params=["double", DEVICE])
def artifacts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Artifacts]:
    """The builds, on a device or on the double; a build is compiled once a run of the tests."""
    folder = tmp_path_factory.getbasetemp() / f"neuron-{request.param}"
    if request.param == "device":
        yield Artifacts(_place(folder), folder)
        return
    with pytest.MonkeyPatch.context() as patch, _variables_kept():
        Emulation(nxdi_double.install(patch, tmp_path_factory.mktemp("site")))
        yield Artifacts(Place("trn2.48xlarge", "2.29"), folder)


@contextmanager
def _variables_kept() -> Iterator[None]:
    """Loading sets variables for the whole process."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def session(artifacts: Artifacts, word_tokenizer: Tokenizer) -> Open:
    """The engine around an artifact, with numbers for words."""
    return lambda name: Session(artifacts.speculator(name), word_tokenizer)


def _place(folder: Path) -> Place:
    """This instance; without a device or NxDI, the tests are skipped and say why."""
    machine = read_machine(build=folder)
    if reason := missing(machine):
        pytest.skip(reason)
    sdk = sdk_line(machine)
    assert machine.instance_type is not None, "this instance does not say what it is"
    assert sdk is not None, "NxDI here is of no SDK release that this version knows"
    return Place(machine.instance_type, sdk)


def missing(machine: Machine) -> str | None:
    """Why nothing can run on a device here; None if it can."""
    if not machine.has_devices:
        return "no /dev/neuron0: run on a trn or inf instance"
    odd = [str(package) for package in neuron_packages() if package.state != "ready"]
    if odd:
        return f"{'; '.join(odd)}: run neuron-spec doctor"
    return None
