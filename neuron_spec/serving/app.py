"""The FastAPI application: routes, and the worker's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from neuron_spec.artifacts import Artifact
from neuron_spec.engine.session import Session, open_session
from neuron_spec.errors import RequestError
from neuron_spec.metrics.prometheus import CONTENT_TYPE
from neuron_spec.serving.errors import add_error_handlers
from neuron_spec.serving.gateway import Gate, Gateway
from neuron_spec.serving.model import ServedModel, respond
from neuron_spec.serving.openapi import ANSWERS, ERRORS
from neuron_spec.serving.page import add_docs, add_page
from neuron_spec.serving.settings import ServerSettings
from neuron_spec.serving.streaming import Batches, Endpoint
from neuron_spec.serving.wire import ChatRequest, CompletionRequest
from neuron_spec.version import __version__

_DEFAULTS = ServerSettings()


class _GatedApp(FastAPI):
    """Everything, errors nobody expected included, passes the gateway."""

    settings: ServerSettings
    gate: Gate

    def build_middleware_stack(self) -> ASGIApp:
        return Gateway(super().build_middleware_stack(), settings=self.settings, gate=self.gate)


class EventStream(StreamingResponse):
    """Closes its chunks when the client has left, not when garbage is collected."""

    def __init__(self, chunks: AsyncGenerator[str, None], batches: Batches) -> None:
        super().__init__(
            chunks, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
        self._chunks, self._batches = chunks, batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._chunks.aclose()
            await self._batches.aclose()  # also where the first chunk was never asked for


def create_app(
    artifact: Artifact,
    *,
    session: Session | None = None,
    model_name: str | None = None,
    speculate: bool = True,
    settings: ServerSettings = _DEFAULTS,
) -> FastAPI:
    """The application of one artifact.

    Args:
        session: the artifact's, if it is open; otherwise it is loaded when the server starts.
    """
    manifest = artifact.manifest
    card = {
        "backend": manifest.backend,
        "draft_method": manifest.spec["draft"]["method"],
        "lookup_method": manifest.lookup_method,
        "speculation": manifest.speculation and speculate,
        "num_draft_tokens": manifest.num_draft_tokens if speculate else 0,
        "verification_rule": manifest.spec["verification"]["rule"],
        "claims": [claim.model_dump() for claim in manifest.claims],
        "numerics": manifest.numerics,
    }
    name = model_name or manifest.name

    def load() -> ServedModel:
        opened = session or open_session(artifact)
        return ServedModel(opened, name, settings=settings, card=card, speculate=speculate)

    return _app(load, settings)


def create_session_app(
    session: Session, *, model_name: str, settings: ServerSettings = _DEFAULTS
) -> FastAPI:
    """The application of a session that is already open, as tests and notebooks have it."""
    return _app(lambda: ServedModel(session, model_name, settings=settings, card={}), settings)


def _app(load: Callable[[], ServedModel], settings: ServerSettings) -> FastAPI:
    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        model = load()
        model.worker.start()
        await run_in_threadpool(int)  # no request waits for what Starlette imports at first use
        app.state.model = model
        yield
        await model.close()

    app = _GatedApp(
        title="neuron-spec", version=__version__, lifespan=life, docs_url=None, redoc_url=None
    )
    app.settings, app.gate = settings, Gate()
    add_error_handlers(app)
    _add_answers(app)
    _add_state(app)
    add_page(app)
    add_docs(app)
    return app


def _add_answers(app: _GatedApp) -> None:
    async def answer(
        http: Request, wire: CompletionRequest | ChatRequest, endpoint: Endpoint
    ) -> Any:
        model: ServedModel = app.state.model
        answer, batches = await model.answer(wire, endpoint)
        http.state.answer = answer
        try:
            result = await _while_connected(http, respond(answer, batches, wire))
        except BaseException:
            await batches.aclose()
            raise
        if isinstance(result, AsyncGenerator):
            return EventStream(result, batches)
        await batches.aclose()
        return result

    @app.post("/v1/completions", responses=ANSWERS)
    async def completions(http: Request, request: CompletionRequest) -> Any:
        """Continue a prompt."""
        return await answer(http, request, "completion")

    @app.post("/v1/chat/completions", responses=ANSWERS)
    async def chat_completions(http: Request, request: ChatRequest) -> Any:
        """Answer a conversation."""
        return await answer(http, request, "chat")


def health(app: FastAPI) -> dict[str, Any]:
    """Whether only a new start helps (`live` is false), and whether requests are taken."""
    worker, gate = app.state.model.worker, app.gate  # type: ignore[attr-defined]
    is_live = worker.is_alive and not worker.is_broken
    status = "engine stopped" if not worker.is_alive else "engine failing"
    if is_live:
        status = "draining" if gate.is_closed else "ok"
    return {"status": status, "live": is_live, "ready": status == "ok"}


def _add_state(app: _GatedApp) -> None:
    @app.get("/v1/models", responses=ERRORS)
    async def models() -> dict[str, Any]:
        """The one model, with its speculation state and the rule's claims."""
        return {"object": "list", "data": [app.state.model.card()]}

    @app.get("/v1/models/{name:path}", responses=ERRORS)
    async def model(name: str) -> dict[str, Any]:
        """The same by its name."""
        card: dict[str, Any] = app.state.model.card()
        if name != card["id"]:
            raise RequestError("no such model", field="model", found=name)
        return card

    @app.get("/health")
    async def whole_health() -> JSONResponse:
        """200 where requests are taken; the engine's load and speculation state."""
        told = health(app)
        told |= app.state.model.state()
        return JSONResponse(told, status_code=200 if told["ready"] else 503)

    @app.get("/health/live")
    async def live() -> JSONResponse:
        """503 where only a new start helps."""
        told = health(app)
        return JSONResponse(told, status_code=200 if told["live"] else 503)

    @app.get("/health/ready")
    async def ready() -> JSONResponse:
        """503 where no requests are taken, also while the server drains."""
        told = health(app)
        return JSONResponse(told, status_code=200 if told["ready"] else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus' text form, under vLLM's names."""
        return Response(app.state.model.metrics.render(), media_type=CONTENT_TYPE)


async def _while_connected(http: Request, answer: Coroutine[Any, Any, Any]) -> Any:
    """The answer; a client that hangs up before it cancels it, so that its slots are free again."""
    answering = asyncio.create_task(answer)
    listening = asyncio.create_task(_hang_up(http))
    try:
        await asyncio.wait({answering, listening}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else Response(status_code=499)
    finally:
        for task in (answering, listening):
            task.cancel()
        await asyncio.gather(answering, listening, return_exceptions=True)


async def _hang_up(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
