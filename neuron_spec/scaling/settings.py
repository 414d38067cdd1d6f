"""What an operator sets of a deployment, and what Ray Serve is told for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from neuron_spec.errors import UserError
from neuron_spec.spec.schema import BuildSpec

DEPLOYMENT = "Replica"
NEURON_CORES = "neuron_cores"
"""Ray's name for the logical NeuronCores that `neuron-ls` counts on a node."""

_RETRY_AFTER_S = 5
_HEALTH_PERIOD_S = 2.0  # a replica that was killed is noticed, and replaced, after at most this
_DRAIN_POLL_S = 0.5
_AFTER_DRAIN_S = 10.0  # for the engine's thread to end


class ScaleOut(BaseModel):
    """The `args` of the application `neuron_spec.scaling.ray_serve:application`.

    Attributes:
        artifact: its directory, which every node has at this path.
        model_name: in /v1/models; None: the spec's name.
        replicas: how many run; with `max_replicas`, how many at least.
        max_replicas: up to which number Ray adds replicas under load; None: it adds none.
        cpus_per_replica: CPUs that Ray sets aside, and OMP_NUM_THREADS of a replica.
        max_waiting: requests that may wait at one proxy; more are answered with 429.
        api_key_file: keys that open /v1, one a line, on every node.
        requires_api_key: a replica that finds no key (in the file, or else in
            NEURON_SPEC_API_KEYS) does not start. The keys themselves are never an argument, since
            Ray shows and stores arguments.
        drain_s: seconds that the requests of a replica may go on when it is to end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    artifact: str
    model_name: str | None = None
    speculate: bool = True
    warm_up: bool = True
    replicas: int = Field(1, ge=1)
    max_replicas: int | None = Field(None, ge=1)
    cpus_per_replica: float = Field(1.0, gt=0)
    max_waiting: int = Field(256, ge=0)
    prefix_cache_mb: int = Field(256, ge=0)
    max_body_mb: float = Field(4.0, gt=0)
    request_timeout_s: float = Field(600.0, gt=0)
    drain_s: float = Field(30.0, ge=0)
    api_key_file: str | None = None
    requires_api_key: bool = False
    log_format: Literal["json", "text"] = "json"

    @model_validator(mode="after")
    def _most_is_not_less_than_least(self) -> ScaleOut:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below replicas {self.replicas}")
        return self


def read_settings(args: Mapping[str, Any]) -> ScaleOut:
    """The settings in a config file's `args`.

    Raises:
        UserError: unknown, missing or wrong ones, all of them named.
    """
    try:
        return ScaleOut.model_validate(args)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'replicas'}: {fault['msg']}"
            for fault in error.errors()
        ]
        raise UserError(
            "\n  ".join(["args do not fit", *faults]), where="Ray Serve config"
        ) from None


def replica_resources(settings: ScaleOut, spec: BuildSpec, backend: str) -> dict[str, float]:
    """What one replica takes, by Ray's names: `CPU`, and `GPU` or `neuron_cores`.

    A Neuron artifact takes as many logical NeuronCores as its TP degree; Ray chooses which, and
    sets NEURON_RT_VISIBLE_CORES for the replica.
    """
    resources = {"CPU": settings.cpus_per_replica}
    if backend == "neuron" and spec.neuron is not None:
        resources[NEURON_CORES] = spec.neuron.tp_degree
    elif spec.reference.device == "cuda":
        resources["GPU"] = 1
    return resources


def deployment_options(settings: ScaleOut, spec: BuildSpec, backend: str) -> dict[str, Any]:
    """The options of Ray Serve's deployment.

    A replica is given as many requests as its batch has slots, and as many again, so that a slot
    that falls free is filled at once. The rest waits at the proxy, where any replica can take it
    and none is lost with a replica. Autoscaling aims at full batches without a queue.
    """
    batch_size = spec.shape.batch_size
    options: dict[str, Any] = {
        "name": DEPLOYMENT,
        "max_ongoing_requests": 2 * batch_size,
        # 0 would refuse every request, one that need not wait too.
        "max_queued_requests": max(1, settings.max_waiting),
        "backpressure_config": {"status_code": 429, "retry_after_s": _RETRY_AFTER_S},
        "graceful_shutdown_wait_loop_s": _DRAIN_POLL_S,
        "graceful_shutdown_timeout_s": settings.drain_s + _AFTER_DRAIN_S,
        "health_check_period_s": _HEALTH_PERIOD_S,
        "logging_config": {"enable_access_log": False},  # a replica writes its own
        "ray_actor_options": _actor_options(replica_resources(settings, spec, backend)),
    }
    if settings.max_replicas is None:
        return {**options, "num_replicas": settings.replicas}
    scaling = {
        "min_replicas": settings.replicas,
        "max_replicas": settings.max_replicas,
        "target_ongoing_requests": batch_size,
    }
    return {**options, "autoscaling_config": scaling}


def _actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    own = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {
        "num_cpus": resources["CPU"],
        "num_gpus": resources.get("GPU", 0),
        "resources": own,
    }
