"""Doubles and helpers of the serving tests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
from conftest import WordTokenizer
from fastapi import FastAPI

from neuron_spec.backends.base import (
    GREEDY,
    Decoding,
    Limits,
    PrefillResult,
    StepResult,
    TokenLogprobs,
)
from neuron_spec.engine import Session
from neuron_spec.engine.tokenizer import check_text
from neuron_spec.serving.app import create_session_app
from neuron_spec.serving.logs import log_config
from neuron_spec.serving.server import DrainingServer, bind
from neuron_spec.serving.settings import ServerSettings

with warnings.catch_warnings():  # newer Starlettes ask for httpx2, older ones know httpx only
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient as TestClient

MODEL = "scripted"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LIMITS = Limits(
    batch_size=4,
    max_prompt_tokens=16,
    max_total_tokens=64,
    num_draft_tokens=3,
    can_sample=True,
    has_logprobs=True,
    vocab_size=100,
)


@dataclass
class _Row:
    prompt: tuple[int, ...]
    decoding: Decoding
    position: int = 0


class AnySpeculator:
    """Answers every prompt, with ids 3 … 99 that depend on prompt, seed and position alone; drafts
    and accepts as the position says."""

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.rows: dict[int, _Row] = {}
        self.pause_s = 0.0
        self.go = threading.Event()  # steps wait for it
        self.go.set()

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        assert slot not in self.rows
        row = self.rows[slot] = _Row(tuple(prompt_ids), decoding)
        (token,), logprobs = self._take(row, 1)
        return PrefillResult(token, None, logprobs[0] if logprobs else None)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        time.sleep(self.pause_s)
        assert self.go.wait(20)
        results = []
        for slot, row in sorted(self.rows.items()):
            drafted = num_draft_tokens if row.decoding.speculate else 0
            accepted = row.position % (drafted + 1)
            tokens, logprobs = self._take(row, accepted + 1)
            results.append(StepResult(slot, tokens, drafted, accepted, logprobs))
        return results

    def release(self, slot: int) -> None:
        self.rows.pop(slot, None)

    def _take(self, row: _Row, count: int) -> tuple[tuple[int, ...], Any]:
        positions = range(row.position, row.position + count)
        row.position += count
        tokens = tuple(answer(row.prompt, row.decoding.sampling.seed, at) for at in positions)
        wanted = row.decoding.num_logprobs
        if wanted is None:
            return tokens, None
        top = tuple((3 + rank, -float(rank)) for rank in range(wanted))
        return tokens, tuple(TokenLogprobs(-math.log(token), top) for token in tokens)


def answer(prompt: Sequence[int], seed: int | None, position: int) -> int:
    digest = hashlib.sha256(repr((tuple(prompt), seed, position)).encode()).digest()
    return 3 + digest[0] % 97


class Words(WordTokenizer):
    """Takes any text: a word is the id it spells, or one of its own."""

    def encode(self, prompt: object) -> tuple[int, ...]:
        if isinstance(prompt, str):
            check_text(prompt, "prompt")  # as a model's tokenizer does
            return tuple(self._id(word) for word in prompt.split())
        parts = list(prompt)  # type: ignore[call-overload]
        if parts and isinstance(parts[0], dict):
            check_text("".join(m["content"] for m in parts), "messages")
            return tuple(self._id(word) for m in parts for word in m["content"].split())
        return tuple(parts)

    @staticmethod
    def _id(word: str) -> int:
        if word.isdecimal() and int(word) < 100:
            return int(word)
        return 3 + sum(word.encode()) % 97


def any_app(speculator: AnySpeculator | None = None, **settings: Any) -> FastAPI:
    session = Session(speculator or AnySpeculator(), Words())
    return create_session_app(session, model_name=MODEL, settings=ServerSettings(**settings))


def with_limits(**changes: Any) -> AnySpeculator:
    return AnySpeculator(limits=replace(LIMITS, **changes))


@dataclass
class Live:
    """A server on a real socket, in a thread."""

    app: FastAPI
    url: str
    server: DrainingServer
    thread: threading.Thread

    def tell_to_end(self) -> None:
        """As a signal would; threads get none."""
        self.server.should_exit = True


@contextmanager
def live(app: FastAPI, *, drain_s: float = 5.0) -> Iterator[Live]:
    settings = ServerSettings(drain_s=drain_s)
    listening = bind("127.0.0.1", 0)
    server = DrainingServer(app, settings=settings, log_form="json")
    thread = threading.Thread(target=server.run, args=([listening],))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Live(app, url, server, thread)
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        listening.close()
        # The server set logging up for its whole process.
        for name in log_config("json")["loggers"]:
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
    assert not thread.is_alive()


def wait_until(condition: Any, timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def leave_early(url: str, body: dict[str, Any]) -> None:
    """Ask, and close the connection before anything comes back."""
    request = httpx.Request("POST", url, json=body)
    head = f"POST {request.url.raw_path.decode()} HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    address = (request.url.host, request.url.port or 80)
    with contextlib.suppress(OSError), socket.create_connection(address) as connection:
        connection.sendall(head.encode() + b"\r\n" + request.content)


def sse(text: str) -> list[Any]:
    """The events of a stream; `[DONE]` stays text."""
    events = []
    for block in text.split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
    assert text.endswith("\n\n")
    return events


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error, in exactly OpenAI's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    assert body["error"]["type"] == kind
    error: dict[str, Any] = body["error"]
    return error


def join(url: str, events: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The choices of a stream as a whole answer has them, and its usage."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in events[:-1]:
        usage = event.get("usage", usage)
        for part in event["choices"]:
            new = {"text": "", "logprobs": None, "finish_reason": None}
            choice = choices.setdefault(part["index"], new)
            choice["text"] += part["delta"].get("content", "") if url == CHAT else part["text"]
            choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
            for name, values in (part["logprobs"] or {}).items():
                told = choice["logprobs"] = choice["logprobs"] or {}
                told[name] = values if values is None else told.get(name, []) + values
    return [choices[index] for index in sorted(choices)], usage
