"""What runs in a replica's process: the server's application, and what replicas tell together."""

from __future__ import annotations

import asyncio
import logging.config
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neuron_spec.artifacts import open_artifact
from neuron_spec.engine import open_session
from neuron_spec.engine.warmup import warm_up
from neuron_spec.errors import BackendError, UserError
from neuron_spec.metrics.prometheus import CONTENT_TYPE
from neuron_spec.scaling.merging import merged
from neuron_spec.scaling.settings import ScaleOut
from neuron_spec.serving.app import create_app, health
from neuron_spec.serving.gateway import Gate, path_of
from neuron_spec.serving.logs import log_config
from neuron_spec.serving.server import keep_pauses_short
from neuron_spec.serving.settings import API_KEYS_VARIABLE, ServerSettings, read_api_keys

Gather = Callable[[], Awaitable[list[dict[str, Any]]]]

_GATHER_S = 10.0  # a replica that does not answer within this is left out


def load_app(settings: ScaleOut) -> FastAPI:
    """The server's application, its model loaded and warm; called in the replica's process.

    Raises:
        UserError: the artifact does not open, or a key is required and there is none.
    """
    logging.config.dictConfig(log_config(settings.log_format))
    server = server_settings(settings)
    artifact = open_artifact(settings.artifact)
    session = open_session(artifact)
    if settings.warm_up:
        warm_up(session)
    session.cache_prefixes(settings.prefix_cache_mb << 20)
    keep_pauses_short()
    return create_app(
        artifact,
        session=session,
        model_name=settings.model_name,
        speculate=settings.speculate,
        settings=server,
    )


def server_settings(settings: ScaleOut) -> ServerSettings:
    """The same as the server inside the replica has them, with the keys of this process."""
    path = settings.api_key_file
    keys = read_api_keys(Path(path) if path else None)
    if settings.requires_api_key and not keys:
        raise UserError(
            "an API key is required, and the replica finds none",
            where="requires_api_key",
            mend=f"set {API_KEYS_VARIABLE} where Ray runs, or api_key_file to a file on every node",
        )
    return ServerSettings(
        api_keys=keys,
        max_body_bytes=int(settings.max_body_mb * (1 << 20)),
        max_waiting=settings.max_waiting,
        request_timeout_s=settings.request_timeout_s,
        drain_s=settings.drain_s,
    )


class Replica:
    """One process with the artifact. Ray Serve's ingress makes it callable, and sets `app`."""

    app: ReplicaApp

    def check_health(self) -> None:
        """Called by Ray, which replaces a replica whose check fails three times in a row.

        Raises:
            BackendError: only a new start helps.
        """
        told = health(self.app.inner)
        if not told["live"]:
            raise BackendError(f"replica is to be replaced: {told['status']}")

    async def tell(self) -> dict[str, Any]:
        """State and metrics of this replica, for whichever replica was asked about all."""
        from ray import serve

        model = self.app.inner.state.model
        return {
            "replica": serve.get_replica_context().replica_tag,
            "state": health(self.app.inner) | model.state(),
            "metrics": model.metrics.render().decode(),
        }

    def close(self) -> float:
        """Take no more requests, for good; for how many seconds none has been open."""
        gate: Gate = self.app.inner.gate  # type: ignore[attr-defined]
        gate.is_closed = True
        return gate.idle_s

    async def stop(self) -> None:
        """End what still runs with an error."""
        await asyncio.to_thread(self.app.inner.state.model.worker.stop)


class ReplicaApp:
    """The application as Ray Serve sees it.

    `/health` and `/metrics` tell of all replicas, since nobody outside can choose which one
    answers. The request id is left to Ray's proxy, which sets the header itself.
    """

    def __init__(self, inner: FastAPI, gather: Gather | None = None) -> None:
        """`gather` asks all replicas; None: through Ray."""
        self.inner, self._gather = inner, gather or _gather
        self._shared: dict[str, Callable[[list[dict[str, Any]]], Response]] = {
            "/health": _health_of_all,
            "/metrics": _metrics_of_all,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        answer: ASGIApp = self.inner
        if scope["type"] == "http":
            send = _without_request_id(send)
            shared = self._shared.get(path_of(scope))
            if shared and scope["method"] == "GET":
                answer = shared(await self._gather())
        await answer(scope, receive, send)


async def _gather() -> list[dict[str, Any]]:
    """What every replica tells; one that cannot is left out. This one alone after the time."""
    from ray import serve

    me = serve.get_replica_context()
    handle = serve.get_deployment_handle(me.deployment, me.app_name)
    asked = handle.broadcast("tell").results_async(timeout_s=_GATHER_S, return_exceptions=True)
    try:
        told = await asked
    except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
        told = [await me.servable_object.tell()]
    answers = [answer for answer in told if isinstance(answer, dict)]
    return sorted(answers, key=lambda answer: str(answer["replica"]))


def _health_of_all(told: list[dict[str, Any]]) -> Response:
    states = [{"replica": answer["replica"], **answer["state"]} for answer in told]
    is_ready = any(state["ready"] for state in states)
    body = {"status": "ok" if is_ready else "no replica is ready", "replicas": states}
    return JSONResponse(body, status_code=200 if is_ready else 503)


def _metrics_of_all(told: list[dict[str, Any]]) -> Response:
    texts = {answer["replica"]: answer["metrics"] for answer in told}
    return Response(merged(texts), media_type=CONTENT_TYPE)


def _without_request_id(send: Send) -> Send:
    async def passed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message["headers"] if pair[0].lower() != b"x-request-id"]
            message = {**message, "headers": headers}
        await send(message)

    return passed
