"""`neuron-spec doctor`: one screen, JSON, exit codes; never a device, never a hub."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import machines
import pytest
from click.testing import CliRunner, Result

from neuron_spec.cli.main import cli
from neuron_spec.platforms import machine as room
from neuron_spec.platforms.machine import Disk, Machine, read_machine

GIB = 1 << 30
SPEC = str(Path(__file__).parents[2] / "compile" / "llama-3.1-8b-model.trn1.toml")


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments])


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the next run be on a machine that is described."""

    def read(fake: machines.Fake, *, build: Path, network: bool) -> Machine:
        found = read_machine(fake.host(tmp_path), build=build, network=network)
        disks = (Disk("artifacts", str(build), 500 * GIB, 1000 * GIB),)
        return replace(found, python="3.11.9", disks=disks, open_files=65535)

    def choose(fake: machines.Fake) -> None:
        monkeypatch.setattr(room, "read_machine", partial(read, fake))

    return choose


def test_a_healthy_instance(on: Any) -> None:
    on(machines.TRN1)
    result = doctor()
    assert result.exit_code == 0, result.output
    for text in ("trn1.32xlarge: 16 Trainium", "16, 32 cores, 0 in use", "2.26.10.0", "2.30.51.0",
                 "neuronx-distributed-inference 0.8.16251", "256.0 GiB free of 512.0 GiB",
                 "ready to compile"):  # fmt: skip
        assert text in result.output
    assert "mend:" not in result.output
    assert len(result.output.splitlines()) <= 20  # one screen


def test_logical_cores_are_shown(on: Any) -> None:
    on(machines.TRN2.busy(2))
    result = doctor()
    assert result.exit_code == 0
    assert "16, 64 cores of 2 physical ones each, 1 in use" in result.output
    assert "machine-devices-busy" in result.output


def test_what_stops_a_compile_is_exit_code_2_with_its_remedy(on: Any) -> None:
    on(machines.TRN1.but(num_devices=0, loaded=None))
    result = doctor()
    assert result.exit_code == 2
    assert "not loaded" in result.output and "sudo modprobe neuron" in result.output
    assert "1 thing(s) to mend" in result.output


def test_placeholders_are_shown_as_such(on: Any) -> None:
    packages = {**machines.SDK_228, machines.NXDI: "0.1.0|WRONG PACKAGE"}
    on(machines.TRN1.but(packages=packages))
    result = doctor()
    assert result.exit_code == 2
    assert f"{machines.NXDI} 0.1.0 (placeholder)" in result.output


def test_a_laptop(on: Any) -> None:
    on(machines.LAPTOP)
    result = doctor()
    assert result.exit_code == 0
    assert "not an EC2 instance" in result.output and "reference backend" in result.output
    assert doctor("--require-device").exit_code == 2


def test_json(on: Any) -> None:
    on(machines.INF2)
    result = doctor("--json")
    data = json.loads(result.output)
    assert data["machine"]["instance_type"] == "inf2.xlarge"
    assert data["findings"] == [] and data["verdict"].startswith("ready")


def test_a_spec_for_other_chips(on: Any) -> None:
    on(machines.TRN2)
    result = doctor(SPEC)
    assert result.exit_code == 2
    assert "machine-spec-instance" in result.output


def test_a_spec_for_this_instance(on: Any) -> None:
    on(machines.TRN1)
    data = json.loads(doctor(SPEC, "--json").output)
    assert {finding["code"] for finding in data["findings"]} <= {"machine-spec-models"}
    folder = data["machine"]["disks"][0]["folder"]
    assert folder.endswith("build/llama-3.1-8b-model.trn1")


def test_a_spec_that_is_not_there() -> None:
    result = CliRunner().invoke(cli, ["doctor", "no-such.toml"])
    assert "no-such.toml" in str(result.exception)


def test_on_this_machine_without_the_network_and_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['neuron-spec', 'doctor', '--no-network', '--json']\n"
        "from neuron_spec.cli.main import cli\n"
        "cli.main(standalone_mode=False); print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["machine"]["python"] == sys.version.split()[0]
    assert done.stderr.strip() == "False"
