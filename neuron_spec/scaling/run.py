"""Replicas that this process starts, watches, and drains before it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from neuron_spec.artifacts import Artifact, open_artifact
from neuron_spec.errors import BackendError, UserError
from neuron_spec.scaling.ray_serve import bound, import_ray
from neuron_spec.scaling.settings import DEPLOYMENT, ScaleOut, replica_resources

APPLICATION = "neuron-spec"
_POLL_S = 0.5
_ASK_S = 5.0
_QUIET_S = 2.0
"""What waits at Ray's proxy is not counted by any replica, and comes to one within half a second of
a slot's falling free (RAY_SERVE_ROUTER_RETRY_MAX_BACKOFF_S), later where the machine is busy."""

Say = Callable[[str], None]


def run(settings: ScaleOut, *, host: str, port: int, say: Say) -> None:
    """Serve until SIGTERM or SIGINT; then let running requests end, and stop what was started.

    Ray is that of RAY_ADDRESS, or else one that is started here and ends with this process.

    Raises:
        UserError: the resources do not suffice, or Serve already runs there.
        BackendError: the replicas do not start.
    """
    artifact = open_artifact(settings.artifact)  # says what is wrong before Ray is started
    with _ray(settings, artifact) as serve:
        location = "EveryNode" if os.environ.get("RAY_ADDRESS") else "HeadOnly"
        serve.start(http_options={"host": host, "port": port, "location": location})
        try:
            handle = _deploy(serve, settings)
            with _told_to_end() as told:
                say("ready")
                _watch(serve, told, say)
                _close(handle)
                say("draining")
                _drain(handle, settings.drain_s)
        finally:
            serve.shutdown()
    say("ended")


@contextmanager
def _ray(settings: ScaleOut, artifact: Artifact) -> Iterator[Any]:
    ray, serve = import_ray()
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "local", **({} if address else {"include_dashboard": False}))
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise BackendError(f"Ray ({address or 'a local one'}) does not start: {error}") from error
    try:
        if address:
            _refuse_where_serve_runs(ray, address)
        else:
            of_one = replica_resources(settings, artifact.spec, artifact.manifest.backend)
            check_room(settings.replicas, of_one, ray.cluster_resources())
        yield serve
    finally:
        ray.shutdown()


def _refuse_where_serve_runs(ray: Any, address: str) -> None:
    with suppress(ValueError):
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
        raise UserError(
            "Ray Serve already runs on this cluster, and would be ended with this command",
            where=f"RAY_ADDRESS {address}",
            mend="add the application to its config, as in compile/ray/serve.yaml: serve deploy",
        )


def check_room(replicas: int, of_one: dict[str, float], available: dict[str, float]) -> None:
    """Refuse what would wait for ever: resources by Ray's names, of one replica and in all.

    Raises:
        UserError: the replicas need more.
    """
    for name, amount in of_one.items():
        needed, found = amount * replicas, available.get(name, 0)
        if needed > found:
            raise UserError(
                f"not enough {name} for {replicas} replicas",
                where="this machine",
                found=f"{found:g}",
                expected=f"{needed:g}, {amount:g} each",
                mend="run fewer --replicas, or on a cluster: set RAY_ADDRESS",
            )


def _deploy(serve: Any, settings: ScaleOut) -> Any:
    try:
        return serve.run(bound(settings), name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        raise BackendError(f"the replicas did not start: {error}") from error


@contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Set by SIGTERM and SIGINT. A second signal acts as it did before."""
    told = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def tell(number: int, frame: Any) -> None:
        restore()
        told.set()

    for number in before:
        signal.signal(number, tell)
    try:
        yield told
    finally:
        restore()


def _watch(serve: Any, told: threading.Event, say: Say) -> None:
    """Say in which states the replicas are, whenever that has changed."""
    before: dict[Any, int] | None = None
    while not told.wait(_POLL_S):
        deployment = serve.status().applications[APPLICATION].deployments[DEPLOYMENT]
        states = dict(deployment.replica_states)
        if before not in (None, states):
            say("replicas: " + ", ".join(f"{states[name]} {name.lower()}" for name in states))
        before = states


def _drain(handle: Any, drain_s: float) -> None:
    """Replicas take no more requests; what still runs after the grace ends with an error."""
    end = time.monotonic() + drain_s
    while _close(handle) < _QUIET_S and time.monotonic() < end:
        time.sleep(_POLL_S)
    with suppress(TimeoutError):
        _told_by_all(handle, "stop")


def _close(handle: Any) -> float:
    """Let no replica take requests; for how many seconds none of them has had one. 0 where not all
    answer in time: something may run."""
    try:
        told = _told_by_all(handle, "close")
    except TimeoutError:
        return 0.0
    return min((idle_s for idle_s in told if isinstance(idle_s, float)), default=inf)


def _told_by_all(handle: Any, method: str) -> list[Any]:
    """What the replicas answer; of one that cannot, the exception."""
    return list(handle.broadcast(method).results(timeout_s=_ASK_S, return_exceptions=True))
