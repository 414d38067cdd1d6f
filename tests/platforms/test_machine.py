"""Reading a machine: every source, its forms, and what it is when a source is silent."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import machines
import pytest
from machines import INF2, LAPTOP, NXDI, TRN1, TRN2, Fake

from neuron_spec.platforms.machine import Disk, Machine, host, read_machine
from neuron_spec.platforms.machine.devices import parse_neuron_ls
from neuron_spec.platforms.machine.read import LIBRARY


def read(fake: Fake, root: Path, **options: Any) -> Machine:
    return read_machine(fake.host(root), build=root / "build", **options)


@pytest.mark.parametrize(
    ("fake", "cores", "lnc", "device_gib"),
    [(TRN1, 32, None, 32), (TRN2, 64, 2, 96), (INF2, 2, None, 32)],
    ids=lambda value: value.instance_type if isinstance(value, Fake) else "",
)
def test_a_healthy_instance(
    fake: Fake, cores: int, lnc: int | None, device_gib: int, tmp_path: Path
) -> None:
    machine = read(fake, tmp_path)
    assert machine.instance_type == fake.instance_type
    assert machine.family == fake.family
    assert machine.instance is not None
    assert machine.found.nodes == tuple(range(machine.instance.num_chips))
    assert machine.cores == cores == machine.instance.logical_cores(machine.instance.default_lnc)
    assert {device.lnc for device in machine.found.devices} == {lnc}
    assert {d.memory_bytes for d in machine.found.devices} == {device_gib << 30}
    assert machine.found.unreadable == () and machine.found.tool_problem is None
    assert machine.system.driver_loaded == fake.loaded
    assert machine.system.driver_package == fake.system["aws-neuronx-dkms"]
    assert machine.system.runtime_package == fake.system["aws-neuronx-runtime-lib"]
    assert machine.version(NXDI) == fake.packages[NXDI]
    assert machine.memory_bytes == fake.memory_gib << 30
    assert machine.memory_free_bytes == fake.memory_gib << 29


def test_a_machine_without_neuron(tmp_path: Path) -> None:
    machine = read(LAPTOP, tmp_path)
    assert not machine.has_devices and machine.family is None and machine.instance_type is None
    assert machine.found.devices == () and machine.found.tool_problem is None
    assert [package.name for package in machine.packages] == ["torch", "transformers"]


def test_the_oldest_form_of_the_list() -> None:
    listed = [
        {"neuron_device": 0, "bdf": "00:1e.0", "connected_to": None, "nc_count": 2,
         "memory_size": 34359738368, "neuron_processes": []},
        {"neuron_device": 1, "bdf": "00:1f.0", "connected_to": None, "nc_count": 2,
         "memory_size": 34359738368, "neuron_processes": []},
    ]  # fmt: skip
    devices, instance_type = parse_neuron_ls(json.dumps(listed))
    assert [(device.index, device.cores) for device in devices] == [(0, 2), (1, 2)]
    assert instance_type is None


def test_core_ids_win_over_a_count_of_physical_cores() -> None:
    row = {**machines.trn2_device(0), "nc_count": 8}
    devices, _ = parse_neuron_ls(json.dumps([row]))
    assert devices[0].cores == 4


@pytest.mark.parametrize("output", ["", "no devices found", "{}", "[1]", '[{"nc_count": 2}]'])
def test_a_list_that_is_none_is_told_and_the_driver_asked(output: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        parse_neuron_ls(output)
    machine = read(INF2.but(listed=output), tmp_path)
    assert machine.found.tool_problem
    assert [device.cores for device in machine.found.devices] == [2]  # by the driver's core_count


def test_processes_but_for_the_tool_itself(tmp_path: Path) -> None:
    machine = read(TRN2.busy(0, 3), tmp_path)
    holders = {d.index: d.processes for d in machine.found.devices if d.processes}
    assert set(holders) == {0, 3}
    assert holders[0][0].pid == 113985 and holders[0][0].command == "python serve.py"


def test_the_instance_type_by_list_then_dmi_then_metadata(tmp_path: Path) -> None:
    other = TRN2.but(instance_type="trn1.2xlarge", metadata_type="inf2.xlarge")
    assert read(other, tmp_path / "list").instance_type == "trn2.48xlarge"
    by_dmi = TRN1.but(metadata_type="inf2.xlarge")
    assert read(by_dmi, tmp_path / "dmi").instance_type == "trn1.32xlarge"
    nameless = TRN1.but(instance_type=None, metadata_type="trn1.32xlarge")
    assert read(nameless, tmp_path / "asked").instance_type == "trn1.32xlarge"
    unasked = read(nameless, tmp_path / "unasked", network=False)
    assert unasked.instance_type is None and unasked.family == "trn1"


def test_what_is_no_instance_type_is_none(tmp_path: Path) -> None:
    page = LAPTOP.but(metadata_type="<html>sign in</html>")
    assert read(page, tmp_path / "portal").instance_type is None
    laptop = tmp_path / "laptop"
    _ = LAPTOP.host(laptop)
    folder = laptop / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    (folder / "product_name").write_text("inf2.xlarge")
    (folder / "sys_vendor").write_text("Somebody else")
    assert read(LAPTOP, laptop).instance_type is None


def test_chips_without_a_driver_are_found_on_the_bus(tmp_path: Path) -> None:
    machine = read(TRN1.but(num_devices=0, loaded=None, instance_type=None), tmp_path)
    assert not machine.has_devices and machine.family == "trn1"


def test_rpm_where_there_is_no_dpkg(tmp_path: Path) -> None:
    machine = read(TRN1.but(system={}, rpms=machines.SYSTEM_228), tmp_path)
    assert machine.system.driver_package == "2.26.10.0"


def test_a_runtime_without_a_package(tmp_path: Path) -> None:
    machine = read(TRN1.but(system={}), tmp_path)
    assert not machine.system.has_runtime_library
    library = tmp_path / LIBRARY.lstrip("/")
    library.parent.mkdir(parents=True)
    library.touch()
    assert read(TRN1.but(system={}), tmp_path).system.has_runtime_library


def test_placeholders_are_told_apart(tmp_path: Path) -> None:
    fake = TRN2.but(packages={NXDI: "0.1.0|WRONG PACKAGE, see AWS's index", "torch": "2.9.1"})
    machine = read(fake, tmp_path)
    assert [package.is_placeholder for package in machine.packages] == [True, False]
    assert machine.version(NXDI) is None


def test_a_container_may_use_less_memory(tmp_path: Path) -> None:
    limited = read(TRN1.but(cgroup_limit=str(8 << 30)), tmp_path / "limited")
    assert limited.memory_bytes == limited.memory_free_bytes == 8 << 30
    free = read(TRN1.but(cgroup_limit="max"), tmp_path / "free")
    assert free.memory_bytes == 512 << 30


def test_variables_are_those_of_neuron_and_no_secrets(tmp_path: Path) -> None:
    variables = {
        "NEURON_RT_VISIBLE_CORES": "0-3", "HF_HOME": "/models", "HF_TOKEN": "secret",
        "NEURON_X_API_KEY": "secret", "PATH": "/bin",
    }  # fmt: skip
    machine = read(TRN1.but(environment=variables), tmp_path)
    assert machine.environment == {"HF_HOME": "/models", "NEURON_RT_VISIBLE_CORES": "0-3"}


def test_disks_behind_folders_that_may_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "not" / "there"
    variables = {"NEURON_COMPILE_CACHE_URL": f"file://{cache}", "HF_HOME": str(tmp_path / "hf")}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _usage(path))
    disks = {disk.use: disk for disk in read(TRN1.but(environment=variables), tmp_path).disks}
    assert disks["compile cache"].folder == str(cache)
    assert disks["Hugging Face cache"].folder == str(tmp_path / "hf" / "hub")
    assert isinstance(disks["artifacts"], Disk)
    assert (disks["artifacts"].free_bytes, disks["artifacts"].total_bytes) == (5, 10)


def _usage(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(path)
    return SimpleNamespace(total=10, used=5, free=5)


def test_a_compile_cache_in_the_cloud_is_no_disk(tmp_path: Path) -> None:
    fake = TRN1.but(environment={"NEURON_COMPILE_CACHE_URL": "s3://bucket/cache"})
    assert "compile cache" not in {disk.use for disk in read(fake, tmp_path).disks}


def test_everything_goes_into_json(tmp_path: Path) -> None:
    data = json.loads(json.dumps(read(TRN2, tmp_path).as_dict()))
    assert data["cores"] == 64 and data["family"] == "trn2"
    assert data["found"]["devices"][0]["lnc"] == 2


# The readers themselves, on this machine's own tools


def test_commands_that_are_not_there_fail_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.run_command(["no-such-command-at-all"]) is None
    assert host.run_command([sys.executable, "-c", "raise SystemExit(1)"]) is None
    assert host.run_command([sys.executable, "-c", "print('yes')"]) == "yes\n"
    monkeypatch.setattr(host, "_COMMAND_TIMEOUT_S", 0.2)
    assert host.run_command([sys.executable, "-c", "import time; time.sleep(60)"]) is None


def test_packages_by_their_metadata() -> None:
    assert host.installed_package("no-such-package-at-all") is None
    found = host.installed_package("click")
    assert found is not None and found[0][0].isdigit()
    assert "PLACEHOLDER" not in found[1]


class _Ec2(BaseHTTPRequestHandler):
    """The metadata service: a token by PUT, values with the token only."""

    def do_PUT(self) -> None:  # noqa: N802
        is_asked = self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "60"
        self._answer(200 if is_asked and self.path == "/latest/api/token" else 400, "token-1")

    def do_GET(self) -> None:  # noqa: N802
        is_allowed = self.headers["X-aws-ec2-metadata-token"] == "token-1"
        self._answer(200 if is_allowed else 401, "trn2.48xlarge\n")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


def test_metadata_of_version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Ec2)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(host, "_METADATA", f"{address}/latest")
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        assert host.ec2_metadata("instance-type") == "trn2.48xlarge"
        monkeypatch.setattr(host, "_METADATA", f"{address}/other")
        assert host.ec2_metadata("instance-type") is None
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert host.ec2_metadata("instance-type") is None  # nobody listens


@pytest.mark.timeout(30)
def test_a_silent_metadata_service_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(host, "_METADATA", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(host, "_METADATA_TIMEOUT_S", 0.2)
        assert host.ec2_metadata("instance-type") is None


def test_a_node_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).endswith("neuron3"))
    assert read(TRN1, tmp_path).found.unreadable == (3,)


def test_a_machine_can_be_described_without_being_read() -> None:
    machine = Machine(instance_type="trn2n.48xlarge")
    assert machine.instance is None and machine.family == "trn2"
    assert replace(machine, instance_type="m5.large").family is None
