"""What every HTTP request passes first: its id, the key, the body's size, the drain, the log."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neuron_spec.serving.errors import error_response
from neuron_spec.serving.ids import Ids
from neuron_spec.serving.settings import ServerSettings

access_log = logging.getLogger("neuron_spec.access")

_REQUEST_ID = re.compile(r"[!-~]{1,128}")  # printable ASCII without spaces
_RETRY_AFTER_DRAIN_S = 5
_CLIENT_LEFT = 499  # nginx's number


class Gate:
    """Counts the requests for answers that are open, and turns new ones away once it is closed."""

    def __init__(self) -> None:
        self.num_open = 0
        self.is_closed = False
        self._empty_since = time.monotonic()

    @property
    def idle_s(self) -> float:
        """For how long none has been open."""
        return 0.0 if self.num_open else time.monotonic() - self._empty_since

    @contextmanager
    def open_to_one(self) -> Iterator[None]:
        """One is open as long as this is."""
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1
            self._empty_since = time.monotonic()


class Entrance:
    """Lets requests in one by one, in the order they came; between two of them the event loop does
    whatever else there is. Where hundreds come at once, nobody waits until all are read."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def pass_through(self) -> None:
        """Returns when it is the caller's turn."""
        async with self._turn:
            await asyncio.sleep(0)


class Gateway:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, gate: Gate) -> None:
        self._app, self._gate = app, gate
        self._ids, self._entrance = Ids(), Entrance()
        self._max_body_bytes = settings.max_body_bytes
        self._key_digests = [_digest(key.encode()) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":  # of an event loop, to which a lock belongs
                self._entrance = Entrance()
            await self._app(scope, receive, send)
            return
        passage = _Passage(scope, receive, send, self._max_body_bytes, new_id=self._ids.new)
        is_work = scope["method"] == "POST"
        try:
            with self._gate.open_to_one() if is_work else nullcontext():
                refusal = self._refusal(scope, passage)
                if is_work and not refusal:
                    await self._entrance.pass_through()
                inner: ASGIApp = refusal or self._app
                await inner(scope, passage.receive, passage.send)
        finally:
            passage.log()

    def _refusal(self, scope: Scope, passage: _Passage) -> Response | None:
        is_api = path_of(scope).startswith("/v1/")
        if is_api and self._key_digests and not self._is_known(passage.headers):
            return error_response(
                "send an API key of this server: Authorization: Bearer KEY",
                401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if self._gate.is_closed and scope["method"] == "POST":
            wait = str(_RETRY_AFTER_DRAIN_S)
            headers = {"Retry-After": wait, "Connection": "close"}
            return error_response("the server is going down", 503, headers=headers)
        announced = passage.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._max_body_bytes:
            headers = {"Connection": "close"}
            return error_response(passage.too_large, 413, headers=headers)
        return None

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = _digest(key.strip().encode("latin-1", "replace"))
        # Every key is compared, in constant time: how long it takes tells nothing about any.
        matches = [hmac.compare_digest(digest, known) for known in self._key_digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class _Passage:
    """One request and its response on their way through."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        max_body_bytes: int,
        *,
        new_id: Callable[[], str],
    ) -> None:
        self.headers = Headers(scope=scope)
        self._scope, self._receive, self._send = scope, receive, send
        self._max_body_bytes, self._num_body_bytes = max_body_bytes, 0
        self._started_at = time.perf_counter()
        self._status: int | None = None
        self._is_complete = False
        given = self.headers.get("x-request-id", "")
        self._request_id = given if _REQUEST_ID.fullmatch(given) else new_id()
        scope.setdefault("state", {})["request_id"] = self._request_id

    @property
    def too_large(self) -> str:
        return f"the body is larger than {self._max_body_bytes} bytes (--max-body-mb)"

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._num_body_bytes += len(message.get("body", b""))
            if self._num_body_bytes > self._max_body_bytes:
                raise HTTPException(413, self.too_large, headers={"Connection": "close"})
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self._request_id
        await self._send(message)
        if message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)

    def log(self) -> None:
        fields: dict[str, Any] = {
            "request_id": self._request_id,
            "method": self._scope["method"],
            "path": self._scope["path"][:200],
            "status": self._status if self._is_complete else _CLIENT_LEFT,
            "duration_ms": round(1000 * (time.perf_counter() - self._started_at), 1),
            **_told_by_answer(self._scope["state"].get("answer")),
        }
        level = logging.DEBUG if _is_probe(path_of(self._scope)) else logging.INFO
        access_log.log(level, "request", extra={"fields": fields})


def path_of(scope: Scope) -> str:
    """The path below the prefix at which the application is mounted (ASGI's `root_path`), as its
    routes know it."""
    path, prefix = scope["path"], scope.get("root_path", "")
    is_below = path == prefix or path.startswith(f"{prefix}/")
    return str(path[len(prefix) :] if is_below else path)


def _is_probe(path: str) -> bool:
    return path.startswith("/health") or path == "/metrics"


def _told_by_answer(answer: Any) -> dict[str, Any]:
    """What a response counted; no word of prompt or answer is logged."""
    if answer is None:
        return {}
    reasons: Sequence[str] = [reason for _, reason in sorted(answer.reasons.items())]
    ttft_s = answer.ttft_s
    return {
        "response_id": answer.head(is_chunk=False)["id"],
        "prompt_tokens": answer.num_prompt_tokens,
        "output_tokens": answer.num_output_tokens,
        "finish_reasons": reasons,
        "ttft_ms": None if ttft_s is None else round(1000 * ttft_s, 1),
        "drafted_tokens": answer.acceptance.num_drafted,
        "accepted_tokens": answer.acceptance.num_accepted,
    }
