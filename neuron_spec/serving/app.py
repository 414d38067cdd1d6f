"""The FastAPI application: routes, errors in OpenAI's form, and the worker's life."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from neuron_spec.artifacts import Artifact
from neuron_spec.engine.session import Session, open_session
from neuron_spec.errors import NeuronSpecError, RequestError
from neuron_spec.serving.streaming import Answer, Endpoint, chunks, error_body, whole
from neuron_spec.serving.wire import ChatRequest, CompletionRequest
from neuron_spec.serving.worker import EngineWorker
from neuron_spec.version import __version__

_TYPE_NAME = re.compile(r"str|int|bool|(list|constrained-str|function-\w+)\[.*\]")


class ServedModel:
    """A session behind a name, with its worker."""

    def __init__(self, session: Session, name: str, card: dict[str, Any], speculate: bool) -> None:
        self.name, self.card, self._session = name, card, session
        self.worker = EngineWorker(session.loop(speculate=speculate))

    async def answer(
        self, request: CompletionRequest | ChatRequest, endpoint: Endpoint
    ) -> dict[str, Any] | AsyncGenerator[str, None]:
        """A whole response or a stream of chunks, as the request asks.

        Raises:
            RequestError: before anything is sent, if a field cannot be honoured.
        """
        if request.model != self.name:
            raise RequestError("no such model", field="model", found=request.model)
        options = {**request.options(), "max_new_tokens": request.output_limit}
        requests = [self._session.request(prompt, **options) for prompt in request.prompts()]
        for prepared in requests:
            prepared.output_limit(self._session.speculator.limits)
        streams = [self.worker.events(prepared) for prepared in requests]
        num_prompt_tokens = sum(len(prepared.prompt_ids) for prepared in requests)
        answer = Answer(endpoint, self.name, num_prompt_tokens)
        if request.stream:
            wants_usage = (
                request.stream_options is not None and request.stream_options.include_usage
            )
            return chunks(answer, streams, include_usage=wants_usage)
        return await whole(answer, streams)


class _EventStream(StreamingResponse):
    """Closes its chunks when the client has left, not when garbage is collected."""

    body_iterator: AsyncGenerator[str, None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()


def create_app(
    artifact: Artifact, *, model_name: str | None = None, speculate: bool = True
) -> FastAPI:
    """The application of one artifact; the model is loaded when the server starts."""
    manifest = artifact.manifest
    card = {
        "backend": manifest.backend,
        "speculation": manifest.speculation and speculate,
        "num_draft_tokens": manifest.num_draft_tokens if speculate else 0,
        "verification_rule": manifest.spec["verification"]["rule"],
        "claims": [claim.model_dump() for claim in manifest.claims],
        "numerics": manifest.numerics,
    }
    name = model_name or manifest.name
    return _app(lambda: ServedModel(open_session(artifact), name, card, speculate))


def create_session_app(session: Session, *, model_name: str) -> FastAPI:
    """The application of a session that is already open, as tests and notebooks have it."""
    return _app(lambda: ServedModel(session, model_name, {}, speculate=True))


def _app(load: Any) -> FastAPI:
    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        model = load()
        model.worker.start()
        app.state.model = model
        yield
        model.worker.stop()

    app = FastAPI(title="neuron-spec", version=__version__, lifespan=life)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(NeuronSpecError, _failed)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    _add_routes(app)
    return app


def _add_routes(app: FastAPI) -> None:
    async def respond(
        http: Request, request: CompletionRequest | ChatRequest, endpoint: Endpoint
    ) -> Any:
        model: ServedModel = app.state.model
        result = await _while_connected(http, model.answer(request, endpoint))
        if isinstance(result, AsyncGenerator):
            return _EventStream(result, media_type="text/event-stream")
        return result

    @app.post("/v1/completions")
    async def completions(http: Request, request: CompletionRequest) -> Any:
        """Continue a prompt."""
        return await respond(http, request, "completion")

    @app.post("/v1/chat/completions")
    async def chat_completions(http: Request, request: ChatRequest) -> Any:
        """Answer a conversation."""
        return await respond(http, request, "chat")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model, with its speculation state and the rule's claims."""
        model: ServedModel = app.state.model
        entry = {"id": model.name, "object": "model", "owned_by": "neuron-spec", **model.card}
        return {"object": "list", "data": [entry]}

    @app.get("/health")
    async def health() -> JSONResponse:
        """Alive while the engine's thread is."""
        is_alive = app.state.model.worker.is_alive
        status = {"status": "ok" if is_alive else "engine stopped"}
        return JSONResponse(status, status_code=200 if is_alive else 503)


async def _while_connected(http: Request, answer: Coroutine[Any, Any, Any]) -> Any:
    """The answer; a client that hangs up before it cancels it, so that its slots are free again."""
    answering = asyncio.create_task(answer)
    listening = asyncio.create_task(_hang_up(http))
    try:
        await asyncio.wait({answering, listening}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else Response(status_code=499)
    finally:
        answering.cancel()
        listening.cancel()


async def _hang_up(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _bad_request(message: str, param: str | None, *, status: int = 400) -> JSONResponse:
    body = error_body(_printable(message), kind="invalid_request_error", param=param)
    return JSONResponse(body, status_code=status)


def _printable(message: str) -> str:
    """What a client sent may hold lone surrogates, which no response can carry."""
    return message.encode("utf-8", "backslashreplace").decode("utf-8")


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    if any(fault["type"] == "json_invalid" for fault in faults):
        return _bad_request(f"the body is not JSON: {faults[0]['ctx']['error']}", None)
    fields = [_field(fault["loc"]) for fault in faults]
    message = "; ".join(
        f"{field or 'body'}: {fault['msg']}" for field, fault in zip(fields, faults, strict=True)
    )
    return _bad_request(message, next(iter(fields), None))


def _field(location: Sequence[int | str]) -> str | None:
    """Dotted name of a field, up to where pydantic goes on with a type's name."""
    parts = takewhile(lambda part: not _TYPE_NAME.fullmatch(part), map(str, location[1:]))
    return ".".join(parts) or None


async def _refused(request: Request, error: Exception) -> JSONResponse:
    field = error.field if isinstance(error, RequestError) else None
    if field == "prompt" and request.url.path.endswith("/chat/completions"):
        field = "messages"  # the engine knows prompts only
    return _bad_request(str(error), field, status=404 if field == "model" else 400)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(error_body(str(error), kind="server_error"), status_code=500)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    body = error_body("internal error; the server's log has more", kind="server_error")
    return JSONResponse(body, status_code=500)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    status, detail = (
        (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
    )
    return _bad_request(f"{request.method} {request.url.path}: {detail}", None, status=status)
