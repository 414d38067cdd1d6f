"""The FastAPI application: routes, errors in OpenAI's form, and the worker's life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse

from neuron_spec.artifacts import Artifact
from neuron_spec.engine.session import Session, open_session
from neuron_spec.errors import NeuronSpecError, RequestError
from neuron_spec.serving.streaming import Answer, Endpoint, chunks, whole
from neuron_spec.serving.wire import ChatRequest, CompletionRequest
from neuron_spec.serving.worker import EngineWorker
from neuron_spec.version import __version__


class ServedModel:
    """A session behind a name, with its worker."""

    def __init__(self, session: Session, name: str, card: dict[str, Any], speculate: bool) -> None:
        self.name, self.card, self._session = name, card, session
        self.worker = EngineWorker(session.loop(speculate=speculate))

    async def answer(
        self, request: CompletionRequest | ChatRequest, endpoint: Endpoint
    ) -> dict[str, Any] | AsyncIterator[str]:
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
    _add_routes(app)
    return app


def _add_routes(app: FastAPI) -> None:
    async def respond(request: CompletionRequest | ChatRequest, endpoint: Endpoint) -> Any:
        model: ServedModel = app.state.model
        result = await model.answer(request, endpoint)
        if isinstance(result, dict):
            return result
        return StreamingResponse(result, media_type="text/event-stream")

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest) -> Any:
        """Continue a prompt."""
        return await respond(request, "completion")

    @app.post("/v1/chat/completions")
    async def chat_completions(request: ChatRequest) -> Any:
        """Answer a conversation."""
        return await respond(request, "chat")

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


def _error(status: int, message: str, param: str | None, kind: str) -> JSONResponse:
    body = {"message": message, "type": kind, "param": param, "code": None}
    return JSONResponse({"error": body}, status_code=status)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    fields = [".".join(str(part) for part in fault["loc"][1:]) for fault in faults]
    message = "; ".join(
        f"{field or 'body'}: {fault['msg']}" for field, fault in zip(fields, faults, strict=True)
    )
    return _error(400, message, fields[0] if fields else None, "invalid_request_error")


async def _refused(request: Request, error: Exception) -> JSONResponse:
    field = error.field if isinstance(error, RequestError) else None
    status = 404 if field == "model" else 400
    return _error(status, str(error), field, "invalid_request_error")


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return _error(500, str(error), None, "server_error")
