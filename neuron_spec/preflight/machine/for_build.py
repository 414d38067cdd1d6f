"""Is this machine the one that a spec's [neuron] table is for, and is it large enough?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.checkpoints.model_config import ModelConfig, read_config
from neuron_spec.checkpoints.prepare import RECORD
from neuron_spec.checkpoints.source import find_model
from neuron_spec.errors import CheckpointError
from neuron_spec.platforms.instances import LNC_SOURCE
from neuron_spec.platforms.machine import Machine
from neuron_spec.platforms.neuron_sdk import LINES
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.machine.findings import error, gib, info, warning
from neuron_spec.preflight.machine.packages import install_command, sdk_line
from neuron_spec.preflight.machine.variables import COMPILES, RUNS, usable_cores
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.memory_estimate import estimate, stored_bytes
from neuron_spec.spec.schema import BuildSpec

_HERE = "neuron_spec.preflight.machine"
_LOADING = "NxDI models/application_base.py"
_NOT_STORED = ("cache", "buffer")  # parts of device memory that no file holds


def check_spec(machine: Machine, spec: BuildSpec) -> list[Finding]:
    """What this machine lacks for a spec; its models are looked for and never downloaded."""
    if spec.neuron is None:
        return [
            info(
                "spec-reference",
                f"{spec.name} has no [neuron] table: it is for the reference backend, which needs "
                "no device",
                "nothing to do",
                _HERE,
            )
        ]
    return [finding for check in _CHECKS for finding in check(machine, build_of(spec))]


def build_of(spec: BuildSpec) -> NeuronBuild:
    """The build, with the models as far as they are here."""
    assert spec.neuron is not None
    target, draft = _model(spec, spec.target.model), None
    if spec.draft.method in ("model", "eagle", "eagle3") and spec.draft.model is not None:
        draft = _prepared(spec) or _model(spec, spec.draft.model)
    return NeuronBuild(spec, spec.neuron, target=target, draft=draft)


def _model(spec: BuildSpec, name: str) -> ModelConfig | None:
    directory = find_model(name, spec.base_directory)
    try:
        return read_config(directory) if directory is not None else None
    except CheckpointError:  # `check` tells it
        return None


def _is_prepared(spec: BuildSpec) -> bool:
    return (spec.build_directory / "draft" / RECORD).is_file()


def _prepared(spec: BuildSpec) -> ModelConfig | None:
    return _model(spec, str(spec.build_directory.absolute() / "draft"))


def check_instance(machine: Machine, build: NeuronBuild) -> Iterator[Finding]:
    """Graphs are compiled for the chips of the machine that compiles."""
    wanted, here = build.neuron.instance, machine.instance_type or machine.family
    if machine.family is None:
        yield info(
            "spec-elsewhere",
            f"{build.spec.name} is for {wanted}; this machine has no Neuron chips",
            "check it here, and compile and serve it there",
            _HERE,
        )
    elif build.instance is not None and machine.family != build.instance.family:
        yield error(
            "spec-instance",
            f"{build.spec.name} is for {wanted}; this is {here}: its graphs would be compiled for "
            f"{machine.family} chips",
            f"use a {build.instance.family} instance, or set neuron.instance to this one and "
            "check the spec again",
            "NxDI models/config.py (platform target)",
        )
    elif machine.instance_type is not None and machine.instance_type != wanted:
        yield info(
            "spec-size",
            f"{build.spec.name} is for {wanted}; this is {here}, with the same chips",
            "nothing to do where its cores and memory suffice",
            _HERE,
        )


def check_cores(machine: Machine, build: NeuronBuild) -> Iterator[Finding]:
    """Enough cores, and enough free ones, to load what is compiled."""
    needed, usable = build.neuron.tp_degree, usable_cores(machine)
    if usable is None:
        return
    taken = sum(device.cores for device in machine.found.devices if device.processes)
    if usable < needed:
        yield warning(
            "spec-cores",
            f"neuron.tp_degree {needed}: {usable} logical cores can be used here; what is compiled "
            "will not load",
            "lower neuron.tp_degree, widen NEURON_RT_VISIBLE_CORES, or use a larger instance",
            _HERE,
        )
    elif machine.cores - taken < needed:
        yield warning(
            "spec-cores-busy",
            f"neuron.tp_degree {needed}: of {machine.cores} cores, {taken} are on devices in use",
            "end the processes that hold them before loading",
            _HERE,
        )


def check_lnc(machine: Machine, build: NeuronBuild) -> Iterator[Finding]:
    """The variables win over the configuration (NEURON_LOGICAL_NC_CONFIG), or have to agree."""
    for name in (COMPILES, RUNS):
        value = machine.environment.get(name)
        if value and value != str(build.lnc):
            yield warning(
                "spec-lnc",
                f"{name}={value}; the spec is for logical cores of {build.lnc}",
                f"unset {name}, or set neuron.logical_nc_config to {value}",
                LNC_SOURCE,
            )


def check_release(machine: Machine, build: NeuronBuild) -> Iterator[Finding]:
    """Keywords are checked against the release that the spec names."""
    line, wanted = sdk_line(machine), build.neuron.sdk
    if line is None or line == wanted:
        return
    yield warning(
        "spec-sdk",
        f"neuron.sdk is {wanted}; the packages here are of SDK {line}: its NeuronConfig may not "
        "know every keyword, and passes over those silently",
        f"set neuron.sdk to {line} and check the spec again"
        + (f", or {install_command(wanted)}" if wanted in LINES else ""),
        "NxDI models/config.py",
    )


def check_models(machine: Machine, build: NeuronBuild) -> Iterator[Finding]:
    """What is not here cannot be counted."""
    missing = [] if build.target else [f"target {build.spec.target.model}"]
    if build.has_draft_model and build.draft is None:
        missing.append(f"draft {build.spec.draft.model}")
    if missing:
        yield info(
            "spec-models",
            f"{' and '.join(missing)}: not on this machine, so that disk and memory for them are "
            "not counted",
            "download them, or run prepare, and ask again",
            _HERE,
        )


def check_memory(machine: Machine, build: NeuronBuild) -> Iterator[Finding]:
    """All weights pass through the host's memory: at compile where they are stored in shards, else
    at every load."""
    total, needed = machine.memory_bytes, _weights(build)
    if total is None or not needed:
        return
    is_sharded = build.neuron.save_sharded_checkpoint
    when = "compiling" if is_sharded else "loading"
    text = f"{gib(needed)} of weights pass through the host's memory while {when}"
    if needed > total:
        finding = error if is_sharded else warning
        yield finding(
            "spec-memory",
            f"{text}; this machine has {gib(total)}",
            "use a machine with more memory"
            + ("" if is_sharded else ", or compile there with neuron.save_sharded_checkpoint"),
            _LOADING,
        )
    elif machine.memory_free_bytes is not None and needed > machine.memory_free_bytes:
        yield warning(
            "spec-memory-free",
            f"{text}; {gib(machine.memory_free_bytes)} of {gib(total)} are free",
            "end other programs first",
            _LOADING,
        )


def _weights(build: NeuronBuild) -> float:
    models = [build.target, build.draft]
    return sum(stored_bytes(model, build.spec.target.dtype) for model in models if model)


def check_disk(machine: Machine, build: NeuronBuild) -> Iterator[Finding]:
    """What is certain to be written: every rank's shards, and the prepared draft."""
    disk = next((disk for disk in machine.disks if disk.use == "artifacts"), None)
    needs = dict(_written(build))
    total = sum(needs.values())
    if disk is None or not total:
        return
    parts = ", ".join(f"{name} {gib(size)}" for name, size in needs.items())
    if total > disk.free_bytes:
        yield error(
            "spec-disk",
            f"{build.spec.name} writes {parts}; {disk.folder} has {gib(disk.free_bytes)} free",
            "free space, or write elsewhere with --output",
            _HERE,
        )


def _written(build: NeuronBuild) -> Iterator[tuple[str, float]]:
    found = estimate(build)
    if build.neuron.save_sharded_checkpoint and found is not None:
        weights = (part for part in found.parts if not part.name.endswith(_NOT_STORED))
        yield "shards", sum(part.num_bytes for part in weights) * found.tp_degree
    if build.is_eagle and build.draft is not None and not _is_prepared(build.spec):
        yield "prepared draft", stored_bytes(build.draft, build.spec.target.dtype)


_CHECKS = (
    check_instance,
    check_cores,
    check_lnc,
    check_release,
    check_models,
    check_memory,
    check_disk,
)
