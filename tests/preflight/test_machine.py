"""Findings about a machine: healthy instances have none, each broken state has its own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from machines import INF2, LAPTOP, NXDI, SDK_228, SDK_229, SYSTEM_228, TRN1, TRN2, Fake, without

from neuron_spec.platforms import neuron_sdk
from neuron_spec.platforms.machine import Disk, Machine, read_machine
from neuron_spec.platforms.nxdi_releases import RELEASES
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.machine import check_spec, examine
from neuron_spec.preflight.machine.findings import GIB
from neuron_spec.preflight.machine.packages import fitting_line, sdk_line
from neuron_spec.preflight.machine.variables import usable_cores, visible_cores
from neuron_spec.spec import BuildSpec, load_spec

ROOMY = (Disk("artifacts", "/build", 500 * GIB, 1000 * GIB),)


def machine_of(fake: Fake, root: Path, **changes: Any) -> Machine:
    """As read, on a Python that the SDKs know, with room on the disk unless said otherwise."""
    machine = read_machine(fake.host(root), build=root / "build")
    known: dict[str, Any] = {"python": "3.11.9", "disks": ROOMY, "open_files": 65535}
    return replace(machine, **{**known, **changes})


def found(fake: Fake, root: Path, **changes: Any) -> dict[str, Finding]:
    findings = examine(machine_of(fake, root, **changes))
    assert all(f.message and f.remedy and f.source for f in findings)
    return {finding.code.removeprefix("machine-"): finding for finding in findings}


def errors(findings: dict[str, Finding]) -> set[str]:
    return {code for code, finding in findings.items() if finding.severity == "error"}


@pytest.mark.parametrize("fake", [TRN1, TRN2, INF2], ids=lambda fake: fake.instance_type)
def test_a_healthy_instance_has_nothing_to_mend(fake: Fake, tmp_path: Path) -> None:
    assert found(fake, tmp_path) == {}


def test_a_laptop_is_no_error_unless_a_device_is_required(tmp_path: Path) -> None:
    machine = machine_of(LAPTOP, tmp_path, python="3.13.1", disks=())
    findings = examine(machine)
    assert [(f.code, f.severity) for f in findings] == [("machine-no-device", "info")]
    assert "reference backend" in findings[0].message
    required = examine(machine, require_device=True)
    assert [f.severity for f in required] == ["error", "info"]
    assert "/dev/neuron0" in required[0].message


# Devices, driver, runtime


def test_the_driver_is_missing(tmp_path: Path) -> None:
    bare = TRN1.but(num_devices=0, loaded=None, system=without(SYSTEM_228, "aws-neuronx-dkms"))
    finding = found(bare, tmp_path)["driver-missing"]
    assert finding.severity == "error" and "aws-neuronx-dkms" in finding.remedy


def test_the_driver_is_installed_and_not_loaded(tmp_path: Path) -> None:
    finding = found(TRN1.but(num_devices=0, loaded=None), tmp_path)["driver-not-loaded"]
    assert "2.26.10.0" in finding.message and "modprobe" in finding.remedy


def test_a_container_without_devices(tmp_path: Path) -> None:
    finding = found(TRN1.but(num_devices=0), tmp_path)["devices-missing"]
    assert "--device=/dev/neuron0" in finding.remedy


def test_the_driver_was_updated_and_the_old_one_still_runs(tmp_path: Path) -> None:
    findings = found(TRN1.but(loaded="2.25.4.0"), tmp_path)
    assert "rmmod" in findings["driver-reload"].remedy
    assert "driver-old" in findings and errors(findings) == set()


def test_a_build_hash_behind_the_version_is_no_other_driver(tmp_path: Path) -> None:
    assert found(TRN1.but(loaded="2.26.10.0-8a6fdf29"), tmp_path) == {}


def test_a_newer_driver_serves_an_older_runtime(tmp_path: Path) -> None:
    newer = TRN1.but(loaded="2.29.0.0", system={**SYSTEM_228, "aws-neuronx-dkms": "2.29.0.0"})
    assert found(newer, tmp_path) == {}


def test_an_old_runtime(tmp_path: Path) -> None:
    system = {**SYSTEM_228, "aws-neuronx-runtime-lib": "2.29.40.0"}
    assert set(found(TRN1.but(system=system), tmp_path)) == {"runtime-old"}


def test_no_runtime_library(tmp_path: Path) -> None:
    system = without(SYSTEM_228, "aws-neuronx-runtime-lib")
    assert errors(found(TRN1.but(system=system), tmp_path)) == {"runtime-missing"}


def test_no_tools(tmp_path: Path) -> None:
    findings = found(TRN1.but(listed=None), tmp_path)
    assert set(findings) == {"tools"} and "aws-neuronx-tools" in findings["tools"].remedy


def test_devices_that_are_busy(tmp_path: Path) -> None:
    finding = found(TRN2.busy(0, 1), tmp_path)["devices-busy"]
    assert finding.severity == "warning"
    assert "2 of 16" in finding.message and "113985 (python serve.py)" in finding.message


def test_fewer_devices_than_the_instance_has(tmp_path: Path) -> None:
    assert "4 of the 16" in found(TRN1.but(num_devices=4), tmp_path)["devices-fewer"].message


def test_a_node_that_may_not_be_opened(tmp_path: Path) -> None:
    machine = machine_of(TRN1, tmp_path)
    machine = replace(machine, found=replace(machine.found, unreadable=(0, 1, 2, 3, 4)))
    codes = {f.code: f.message for f in examine(machine)}
    assert codes["machine-device-access"].endswith("/dev/neuron2 and 2 more")


def test_inferentia_1_and_unknown_sizes(tmp_path: Path) -> None:
    old = LAPTOP.but(instance_type="inf1.xlarge", family="inf1")
    assert "inf1" in errors(found(old, tmp_path / "old"))
    new = TRN2.but(listed=None, instance_type="trn2n.48xlarge")
    assert "instance-unknown" in found(new, tmp_path / "new")


# Packages


def test_placeholders(tmp_path: Path) -> None:
    fakes = {NXDI: "0.1.0|WRONG PACKAGE", "torch-neuronx": "1.0|WRONG PACKAGE"}
    findings = found(TRN1.but(packages={**SDK_228, **fakes}), tmp_path)
    assert errors(findings) == {"placeholder"}
    assert f"pip uninstall {NXDI} torch-neuronx" in findings["placeholder"].remedy


def test_placeholders_are_told_on_a_laptop_too(tmp_path: Path) -> None:
    fake = LAPTOP.but(packages={NXDI: "0.1.0|WRONG PACKAGE"})
    assert "placeholder" in errors(found(fake, tmp_path))


def test_missing_packages_come_with_the_release_for_the_chips(tmp_path: Path) -> None:
    for fake, release, folder in ((INF2, "0.8", "inf2"), (TRN2, "0.9", "trn2")):
        bare = fake.but(packages={"torch": "2.9.1"})
        finding = found(bare, tmp_path / folder)["packages-missing"]
        assert f'"{NXDI}=={release}.*"' in finding.remedy


def test_packages_of_several_releases(tmp_path: Path) -> None:
    mixed = {**SDK_229, "neuronx-cc": SDK_228["neuronx-cc"]}
    finding = found(TRN2.but(packages=mixed), tmp_path)["sdk-mixed"]
    assert "neuronx-cc 2.23" in finding.message and "SDK 2.28" in finding.message
    assert '"neuronx-cc==2.24.*"' in finding.remedy
    assert '"torch-neuronx==2.9.0.2.13.*"' in finding.remedy


def test_a_release_that_left_the_chips(tmp_path: Path) -> None:
    findings = found(TRN1.but(packages=SDK_229), tmp_path)
    assert "sdk-chips" in errors(findings)
    assert "install SDK 2.28" in findings["sdk-chips"].remedy
    assert "driver-old" not in findings  # the driver serves the runtime that is there


def test_a_release_whose_source_was_not_read(tmp_path: Path) -> None:
    newer = {
        **SDK_229, NXDI: "0.10.18399", "neuronx-distributed": "0.19.28492",
        "torch-neuronx": "2.9.0.2.15.32035", "neuronx-cc": "2.26.6360.0",
    }  # fmt: skip
    findings = found(TRN2.but(packages=newer), tmp_path)
    assert {"sdk-unread", "runtime-old"} == set(findings)


def test_versions_of_no_known_release(tmp_path: Path) -> None:
    newer = {**SDK_229, "neuronx-cc": "2.99.1.0"}
    assert set(found(TRN2.but(packages=newer), tmp_path)) == {"sdk-unknown"}


def test_old_packages(tmp_path: Path) -> None:
    old = {**SDK_228, NXDI: "0.6.10598"}
    assert {"package-old", "sdk-mixed"} <= errors(found(TRN1.but(packages=old), tmp_path))


@pytest.mark.parametrize(
    ("package", "version", "code"),
    [("transformers", "5.0.0", "transformers"), ("torch", "2.8.0", "torch")],
)
def test_other_releases_than_nxdi_is_built_for(
    package: str, version: str, code: str, tmp_path: Path
) -> None:
    fake = TRN2.but(packages={**SDK_229, package: version})
    assert errors(found(fake, tmp_path)) == {code}


def test_a_python_without_packages(tmp_path: Path) -> None:
    finding = found(TRN2, tmp_path, python="3.13.1")["python"]
    assert "3.12" in finding.message and finding.severity == "error"


def test_vllm_without_its_plugin(tmp_path: Path) -> None:
    fake = TRN2.but(packages={**SDK_229, "vllm": "0.16.0"})
    assert found(fake, tmp_path)["vllm-plain"].severity == "info"


# Variables


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}, "lnc-variables"),
        ({"NEURON_LOGICAL_NC_CONFIG": "4"}, "lnc-value"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}, "platform-override"),
        ({"NEURON_RT_VISIBLE_CORES": "60-64"}, "visible-cores"),
        ({"NEURON_RT_VISIBLE_CORES": "all"}, "visible-cores"),
    ],
)
def test_variables_that_contradict(variables: dict[str, str], code: str, tmp_path: Path) -> None:
    assert set(found(TRN2.but(environment=variables), tmp_path)) == {code}


def test_variables_that_agree(tmp_path: Path) -> None:
    variables = {
        "NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2", "NEURON_RT_VISIBLE_CORES": "60-63",
    }  # fmt: skip
    assert found(TRN2.but(environment=variables), tmp_path) == {}


def test_lists_of_cores() -> None:
    assert visible_cores("0-3, 8") == (0, 1, 2, 3, 8)
    assert visible_cores("5") == (5,)
    for text in ("", "a", "1-", "-1", "1,,2"):
        assert visible_cores(text) is None


def test_usable_cores(tmp_path: Path) -> None:
    for variables, count in (
        ({}, 64), ({"NEURON_RT_VISIBLE_CORES": "0-7"}, 8), ({"NEURON_RT_NUM_CORES": "4"}, 4),
    ):  # fmt: skip
        fake = TRN2.but(environment=variables)
        assert usable_cores(machine_of(fake, tmp_path / str(count))) == count
    assert usable_cores(Machine()) is None


# Disk, memory, files


@pytest.mark.parametrize(
    ("free_gib", "code", "severity"),
    [(0.5, "disk-full", "error"), (8, "disk-tight", "warning"), (100, None, None)],
)
def test_disks(free_gib: float, code: str | None, severity: str | None, tmp_path: Path) -> None:
    disks = (Disk("compile cache", "/var/tmp", int(free_gib * GIB), 1000 * GIB),)
    findings = found(TRN2, tmp_path, disks=disks)
    assert set(findings) == ({code} if code else set())
    if code:
        assert findings[code].severity == severity
        assert "NEURON_COMPILE_CACHE_URL" in findings[code].remedy
    assert set(found(LAPTOP, tmp_path / "laptop", disks=disks, python="3.13.1")) == {"no-device"}


def test_a_memory_limit(tmp_path: Path) -> None:
    finding = found(TRN2.but(cgroup_limit=str(64 * GIB)), tmp_path)["memory-limited"]
    assert "64.0 GiB of trn2.48xlarge's 2048 GiB" in finding.message


def test_open_files_for_many_cores(tmp_path: Path) -> None:
    assert "open-files" in found(TRN2, tmp_path / "many", open_files=1024)
    assert found(INF2, tmp_path / "few", open_files=1024) == {}


# With a spec


def spec_of(folder: Path, neuron: dict[str, Any], **tables: Any) -> BuildSpec:
    folder.mkdir(exist_ok=True)
    sections = {
        "target": {"model": "meta-llama/Llama-3.1-8B"},
        "draft": {"method": "none"},
        "shape": {"max_prompt_tokens": 64, "max_total_tokens": 96},
        "neuron": neuron,
    }
    return load_spec(tiny.write_spec(folder / "spec.toml", **{**sections, **tables}))


def spec_codes(machine: Machine, spec: BuildSpec) -> dict[str, Finding]:
    return {f.code.removeprefix("machine-spec-"): f for f in check_spec(machine, spec)}


@pytest.fixture
def tiny_neuron_spec(
    tmp_path: Path, target_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> BuildSpec:
    """The tiny target alone, for the whole of a trn1.2xlarge."""
    monkeypatch.chdir(tmp_path)
    neuron = {"instance": "trn1.32xlarge", "tp_degree": 2, "sdk": "2.28"}
    return spec_of(tmp_path, neuron, target={"model": str(target_directory)})


def test_the_machine_is_the_specs(tiny_neuron_spec: BuildSpec, tmp_path: Path) -> None:
    assert spec_codes(machine_of(TRN1, tmp_path), tiny_neuron_spec) == {}


def test_other_chips_stop_the_compile(tiny_neuron_spec: BuildSpec, tmp_path: Path) -> None:
    findings = spec_codes(machine_of(TRN2, tmp_path), tiny_neuron_spec)
    assert findings["instance"].severity == "error"
    assert "trn1.32xlarge" in findings["instance"].message
    assert "sdk" in findings and "2.29" in findings["sdk"].message


def test_another_size_is_told(tiny_neuron_spec: BuildSpec, tmp_path: Path) -> None:
    small = TRN1.but(instance_type="trn1.2xlarge")
    assert set(spec_codes(machine_of(small, tmp_path), tiny_neuron_spec)) == {"size"}


def test_a_machine_without_chips_compiles_elsewhere(
    tiny_neuron_spec: BuildSpec, tmp_path: Path
) -> None:
    findings = spec_codes(machine_of(LAPTOP, tmp_path), tiny_neuron_spec)
    assert {code: f.severity for code, f in findings.items()} == {"elsewhere": "info"}


def test_cores_that_are_too_few_or_taken(tmp_path: Path, tiny_neuron_spec: BuildSpec) -> None:
    few = TRN1.but(environment={"NEURON_RT_VISIBLE_CORES": "0"})
    assert "cores" in spec_codes(machine_of(few, tmp_path / "few"), tiny_neuron_spec)
    taken = TRN1.busy(*range(16))
    assert "cores-busy" in spec_codes(machine_of(taken, tmp_path / "taken"), tiny_neuron_spec)
    some = TRN1.busy(*range(15))
    assert "cores-busy" not in spec_codes(machine_of(some, tmp_path / "some"), tiny_neuron_spec)


def test_logical_cores_of_the_environment(tmp_path: Path, tiny_neuron_spec: BuildSpec) -> None:
    fake = TRN1.but(environment={"NEURON_RT_VIRTUAL_CORE_SIZE": "2"})
    assert "lnc" in spec_codes(machine_of(fake, tmp_path), tiny_neuron_spec)


def test_models_that_are_not_here_are_not_counted(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"instance": "trn1.32xlarge", "tp_degree": 2, "sdk": "2.28"})
    findings = spec_codes(machine_of(TRN1, tmp_path), spec)
    assert set(findings) == {"models"} and "Llama-3.1-8B" in findings["models"].message


@pytest.mark.parametrize(("is_sharded", "severity"), [(False, "warning"), (True, "error")])
def test_memory_that_the_weights_pass_through(
    is_sharded: bool,
    severity: str,
    tiny_neuron_spec: BuildSpec,
    tmp_path: Path,
) -> None:
    assert tiny_neuron_spec.neuron is not None
    neuron = tiny_neuron_spec.neuron.model_copy(update={"save_sharded_checkpoint": is_sharded})
    spec = tiny_neuron_spec.model_copy(update={"neuron": neuron})
    machine = machine_of(TRN1, tmp_path, memory_bytes=1000, memory_free_bytes=500)
    assert spec_codes(machine, spec)["memory"].severity == severity
    machine = replace(machine, memory_bytes=GIB)
    assert set(spec_codes(machine, spec)) == {"memory-free"}


def test_disk_for_what_is_certain_to_be_written(
    tmp_path: Path, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = spec_path.read_text() + "\n".join(
        ["", "[neuron]", 'instance = "trn1.32xlarge"', 'sdk = "2.28"', "tp_degree = 2",
         "save_sharded_checkpoint = true", ""]
    )  # fmt: skip
    (tmp_path / "sharded.toml").write_text(text)
    spec = load_spec(tmp_path / "sharded.toml")
    full = (Disk("artifacts", "/build", 1000, 1000 * GIB),)
    finding = spec_codes(machine_of(TRN1, tmp_path, disks=full), spec)["disk"]
    assert re.search(r"shards 0\.\d GiB, prepared draft 0\.\d GiB", finding.message)
    assert "disk" not in spec_codes(machine_of(TRN1, tmp_path), spec)


def test_a_spec_for_the_reference_backend(spec: BuildSpec, tmp_path: Path) -> None:
    assert set(spec_codes(machine_of(TRN1, tmp_path), spec)) == {"reference"}


# The table of releases


def test_the_table_agrees_with_that_of_nxdi() -> None:
    for sdk, line in neuron_sdk.LINES.items():
        nxdi = RELEASES[sdk].nxdi
        prefix = line.versions[NXDI]
        assert nxdi.startswith(prefix) or prefix.startswith(nxdi)


def test_lines_by_version() -> None:
    assert neuron_sdk.lines_of("torch-neuronx", "2.8.0.2.12.22436") == ("2.28",)
    assert neuron_sdk.lines_of("neuronx-cc", "2.24.5133.0+58f8de22") == ("2.29",)
    assert neuron_sdk.lines_of(NXDI, "0.10.17970") == ("2.30",)
    assert neuron_sdk.lines_of(NXDI, "0.1.0") == ()
    assert neuron_sdk.numbers_of("2.30.51.0-5c4d4e2a1") == (2, 30, 51, 0)
    assert neuron_sdk.is_older("aws-neuronx-dkms", "2.9.4.0", "2.28")


@pytest.mark.parametrize("packages", [SDK_228, SDK_229])
def test_the_line_of_an_environment(packages: dict[str, str], tmp_path: Path) -> None:
    expected = "2.28" if packages is SDK_228 else "2.29"
    fake = TRN2.but(packages=packages)
    assert sdk_line(machine_of(fake, tmp_path / "all")) == expected
    without_nxdi = fake.but(packages=without(packages, NXDI))
    assert sdk_line(machine_of(without_nxdi, tmp_path / "some")) == expected
    assert sdk_line(Machine()) is None


def test_the_line_that_fits_the_chips() -> None:
    assert fitting_line(Machine(instance_type="inf2.xlarge")) == "2.28"
    assert fitting_line(Machine(instance_type="trn2.48xlarge")) == "2.29"
    assert fitting_line(Machine(instance_type="inf1.xlarge")) is None
