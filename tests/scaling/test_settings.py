"""What Ray Serve is told for an artifact, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.errors import UserError
from neuron_spec.scaling.settings import (
    ScaleOut,
    deployment_options,
    read_settings,
    replica_resources,
)
from neuron_spec.spec import BuildSpec, load_spec

COMPILE = Path(__file__).parents[2] / "compile"
NEURON_SPECS = [path for path in sorted(COMPILE.glob("*.toml")) if load_spec(path).neuron]
SPEC = load_spec(COMPILE / "smollm2-135m.cpu.toml")


def with_batch(batch_size: int) -> BuildSpec:
    shape = SPEC.shape.model_copy(update={"batch_size": batch_size})
    return SPEC.model_copy(update={"shape": shape})


def options_of(spec: BuildSpec = SPEC, backend: str = "reference", **settings: Any) -> Any:
    return deployment_options(ScaleOut(artifact="/a", **settings), spec, backend)


@pytest.mark.parametrize("path", NEURON_SPECS, ids=lambda path: path.stem)
def test_a_neuron_artifact_takes_as_many_cores_as_its_tp_degree(path: Path) -> None:
    spec = load_spec(path)
    assert spec.neuron is not None
    options = options_of(spec, "neuron", cpus_per_replica=3)["ray_actor_options"]
    cores = {"neuron_cores": spec.neuron.tp_degree}
    assert options == {"num_cpus": 3, "num_gpus": 0, "resources": cores}
    # The same spec built for the reference backend takes none.
    assert options_of(spec)["ray_actor_options"]["resources"] == {}


def test_a_reference_artifact_takes_cpus_and_on_cuda_a_gpu() -> None:
    assert replica_resources(ScaleOut(artifact="/a"), SPEC, "reference") == {"CPU": 1}
    reference = SPEC.reference.model_copy(update={"device": "cuda"})
    options = options_of(SPEC.model_copy(update={"reference": reference}))["ray_actor_options"]
    assert options == {"num_cpus": 1, "num_gpus": 1, "resources": {}}


@given(st.integers(1, 64), st.integers(1, 20), st.none() | st.integers(0, 20), st.integers(0, 99))
def test_replicas_and_queues_follow_batch_and_settings(
    batch_size: int, replicas: int, more: int | None, max_waiting: int
) -> None:
    most = None if more is None else replicas + more
    settings: dict[str, Any] = {
        "replicas": replicas, "max_replicas": most, "max_waiting": max_waiting, "drain_s": 7,
    }  # fmt: skip
    options = options_of(with_batch(batch_size), **settings)
    assert options["max_ongoing_requests"] >= batch_size  # else slots would stay empty
    assert options["max_queued_requests"] == max(1, max_waiting)
    assert options["backpressure_config"]["status_code"] == 429
    assert options["graceful_shutdown_timeout_s"] > 7  # Ray kills after it
    if most is None:
        assert options["num_replicas"] == replicas
        assert "autoscaling_config" not in options
    else:
        assert "num_replicas" not in options
        assert options["autoscaling_config"] == {
            "min_replicas": replicas, "max_replicas": most, "target_ongoing_requests": batch_size,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({}, "artifact: Field required"),
        ({"artifact": "/a", "replica": 2}, "replica: Extra inputs are not permitted"),
        ({"artifact": "/a", "replicas": 0}, "replicas: Input should be greater than or equal to 1"),
        ({"artifact": "/a", "replicas": 3, "max_replicas": 2}, "max_replicas 2 is below replicas"),
        ({"artifact": "/a", "api_key": "secret"}, "api_key: Extra inputs"),
    ],
)
def test_args_that_do_not_fit_are_named(args: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        read_settings(args)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)
