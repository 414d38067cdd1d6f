"""compile/ray: configs that Ray's own schema takes, and that agree with what they run."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_spec.platforms.instances import INSTANCES
from neuron_spec.scaling.replica import Replica
from neuron_spec.scaling.settings import DEPLOYMENT, ScaleOut, deployment_options, read_settings
from neuron_spec.serving.settings import API_KEYS_VARIABLE
from neuron_spec.spec import load_spec

COMPILE = Path(__file__).parents[2] / "compile"
SERVE_TEXT = (COMPILE / "ray" / "serve.yaml").read_text()
SERVE: dict[str, Any] = yaml.safe_load(SERVE_TEXT)
SERVICE: dict[str, Any] = yaml.safe_load((COMPILE / "ray" / "ray-service.yaml").read_text())
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
(WORKERS,) = CLUSTER["workerGroupSpecs"]
JOB: dict[str, Any] = yaml.safe_load((COMPILE / "kubernetes" / "compile-job.yaml").read_text())


def settings() -> ScaleOut:
    (application,) = SERVE["applications"]
    return read_settings(application["args"])


def container_of(group: dict[str, Any]) -> dict[str, Any]:
    (container,) = group["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in container["env"]}


def test_the_config_names_our_application_and_fits_its_arguments() -> None:
    (application,) = SERVE["applications"]
    module, _, name = application["import_path"].partition(":")
    assert callable(getattr(import_module(module), name))
    assert settings().replicas >= 2
    assert (settings().max_replicas or 0) > settings().replicas
    assert settings().requires_api_key


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")  # in Ray's schema
def test_rays_schema_takes_it_also_with_the_surge_that_its_comment_names() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'neuron-spec[ray]'")
    schema = import_module("ray.serve.schema").ServeDeploySchema
    assert schema.model_validate(SERVE).applications[0].name == "neuron-spec"
    found = re.search(r"deployments: (\[.*\])", SERVE_TEXT)
    assert found
    deployments = yaml.safe_load(found[1])
    (application,) = SERVE["applications"]
    changed = {**SERVE, "applications": [{**application, "deployments": deployments}]}
    (deployment,) = schema.model_validate(changed).applications[0].deployments
    assert deployment.name == DEPLOYMENT
    assert deployment.max_surge_percent == deployments[0]["max_surge_percent"]


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")  # in Ray's schema
@pytest.mark.parametrize("most", [None, 5])
def test_ray_takes_the_options_of_a_deployment(most: int | None) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'neuron-spec[ray]'")
    serve = import_module("ray.serve")
    spec = load_spec(COMPILE / "llama-3.1-8b-eagle.trn2.toml")
    chosen = ScaleOut(artifact="/a", replicas=2, max_replicas=most, max_waiting=9)
    deployment = serve.deployment(**deployment_options(chosen, spec, "neuron"))(Replica)
    assert deployment.name == DEPLOYMENT
    assert deployment.ray_actor_options["resources"] == {"neuron_cores": 4}
    assert deployment.max_queued_requests == 9
    assert deployment.max_ongoing_requests == 2 * spec.shape.batch_size
    if most is None:
        assert deployment.num_replicas == 2
    else:
        schema = import_module("ray.serve.config").AutoscalingConfig
        scaling = schema.model_validate(
            deployment_options(chosen, spec, "neuron")["autoscaling_config"]
        )
        assert (scaling.min_replicas, scaling.max_replicas) == (2, most)
        assert scaling.target_ongoing_requests == spec.shape.batch_size


def test_kubernetes_runs_the_same_config() -> None:
    assert (SERVICE["apiVersion"], SERVICE["kind"]) == ("ray.io/v1", "RayService")
    assert yaml.safe_load(SERVICE["spec"]["serveConfigV2"]) == SERVE


def test_the_artifact_is_the_one_that_the_job_compiles() -> None:
    compiled = JOB["spec"]["template"]["spec"]["containers"][0]
    spec = load_spec(COMPILE / Path(compiled["args"][1]).name)
    assert settings().artifact == f"{compiled['workingDir']}/{spec.build_directory}/artifact"
    assert container_of(WORKERS)["image"] == f"{compiled['image']}-ray"
    work = [mount for mount in container_of(WORKERS)["volumeMounts"] if mount["name"] == "work"]
    assert work == [{"name": "work", "mountPath": compiled["workingDir"]}]


def test_a_worker_pod_holds_one_replica() -> None:
    job = JOB["spec"]["template"]["spec"]
    spec = load_spec(COMPILE / Path(job["containers"][0]["args"][1]).name)
    pod, container = WORKERS["template"]["spec"], container_of(WORKERS)
    assert spec.neuron is not None
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": spec.neuron.instance}
    instance = INSTANCES[spec.neuron.instance]
    assert container["resources"]["limits"]["aws.amazon.com/neuron"] == instance.num_chips
    cores = json.loads(json.loads(WORKERS["rayStartParams"]["resources"]))["neuron_cores"]
    assert cores == spec.neuron.tp_degree == instance.logical_cores(instance.default_lnc)
    assert container["resources"]["limits"]["cpu"] >= settings().cpus_per_replica
    assert pod["terminationGracePeriodSeconds"] > settings().drain_s


def test_there_are_as_many_pods_as_replicas() -> None:
    assert WORKERS["minReplicas"] == WORKERS["replicas"] == settings().replicas
    assert WORKERS["maxReplicas"] == settings().max_replicas
    assert CLUSTER["enableInTreeAutoscaling"] is True
    assert CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_keys_come_from_a_secret_and_start_parameters_are_text() -> None:
    for group in (CLUSTER["headGroupSpec"], WORKERS):
        entries = environment(container_of(group))
        assert entries[API_KEYS_VARIABLE].keys() == {"name", "valueFrom"}
        assert "secretKeyRef" in entries[API_KEYS_VARIABLE]["valueFrom"]
        assert entries["RAY_USAGE_STATS_ENABLED"]["value"] == "0"
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
