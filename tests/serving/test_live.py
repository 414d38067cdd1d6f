"""A server on a real socket: the official client, clients that hang up, the drain, and its end."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from served import (
    CHAT,
    COMPLETIONS,
    MODEL,
    AnySpeculator,
    Live,
    answer,
    any_app,
    leave_early,
    live,
    wait_until,
)

from neuron_spec.backends.base import StepResult
from neuron_spec.errors import UserError
from neuron_spec.serving.server import bind

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "5 6", "max_tokens": 7}
LONG: dict[str, Any] = {**COMPLETION, "ignore_eos": True, "max_tokens": 60}
MESSAGES: Any = [{"role": "user", "content": "5 6"}]


def words(seed: int, count: int) -> str:
    return "".join(f"{answer((5, 6), seed, position)} " for position in range(count))


# The official client


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with live(any_app(api_keys=("secret",))) as server:
        base_url = f"{server.url}/v1"
        with openai.OpenAI(base_url=base_url, api_key="secret", max_retries=0) as client:
            yield client


def test_the_official_client_chats(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=7, seed=1, n=2, temperature=0.7,
        top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1, logit_bias={"5": 1},
        logprobs=True, top_logprobs=3, user="me", stop=["none"],
        response_format={"type": "text"},
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True,
                    "min_tokens": 2, "include_acceptance": True},
    )  # fmt: skip
    assert len(completion.choices) == 2
    choice = completion.choices[0]
    assert choice.message.content == words(1, 7)
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == words(1, 7)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 14
    told: Any = completion.usage.model_extra
    assert told["acceptance"]["num_drafted_tokens"] > 0


def test_the_official_client_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=7, seed=1, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == words(1, 7)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 9
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_the_official_client_completes(client: openai.OpenAI) -> None:
    completion = client.completions.create(
        model=MODEL, prompt=[[5, 6], [7]], max_tokens=4, seed=2, logprobs=2, best_of=1
    )
    assert [choice.index for choice in completion.choices] == [0, 1]
    first = completion.choices[0]
    assert first.text == words(2, 4)
    assert first.logprobs is not None
    assert "".join(first.logprobs.tokens or []) == first.text
    pieces = client.completions.create(
        model=MODEL, prompt="5 6", max_tokens=4, seed=2, echo=True, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces) == "5 6" + words(2, 4)


def test_the_official_client_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_the_official_client_knows_our_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


# Clients that leave, and the end


def stream_end(url: str, request: dict[str, Any]) -> str:
    with httpx.stream("POST", f"{url}{COMPLETIONS}", json=request, timeout=20) as response:
        return "".join(response.iter_text())


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize("stream", [False, True])
def test_curl(client: openai.OpenAI, stream: bool) -> None:
    body = json.dumps({**COMPLETION, "seed": 3, "stream": stream})
    headers = ["-H", "Content-Type: application/json", "-H", "Authorization: Bearer secret"]
    url = f"{client.base_url}completions"
    said = subprocess.run(
        ["curl", "-sSN", "--fail", url, *headers, "-d", body],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    if not stream:
        assert json.loads(said)["choices"][0]["text"] == words(3, 7)
        return
    *events, done = [line.removeprefix("data: ") for line in said.splitlines() if line]
    assert done == "[DONE]"
    texts = [choice["text"] for event in events for choice in json.loads(event)["choices"]]
    assert "".join(texts) == words(3, 7)


def test_clients_that_hang_up_free_their_slots() -> None:
    speculator = AnySpeculator()
    speculator.pause_s = 0.02
    app = any_app(speculator)
    with live(app) as server:
        for stream in (False, True):
            for _ in range(6):  # more than there are slots: some leave while they wait
                leave_early(f"{server.url}{COMPLETIONS}", {**LONG, "stream": stream})
        wait_until(lambda: app.gate.num_open == 0)  # type: ignore[attr-defined]
        wait_until(lambda: not speculator.rows and not app.state.model.worker.num_waiting)
        assert httpx.post(f"{server.url}{COMPLETIONS}", json=COMPLETION).status_code == 200


def under_load(server: Live, speculator: AnySpeculator, threads: ThreadPoolExecutor) -> list[Any]:
    request = {**LONG, "stream": True, "seed": 1}
    speculator.go.clear()  # none ends before the last has come
    streams = [threads.submit(stream_end, server.url, request) for _ in range(6)]
    wait_until(lambda: server.app.state.model.worker.num_open == 6)
    speculator.go.set()
    wait_until(lambda: len(speculator.rows) == 4)
    return streams


def test_the_drain_lets_what_runs_or_waits_end_and_turns_new_ones_away() -> None:
    speculator = AnySpeculator()
    speculator.pause_s = 0.02
    with ThreadPoolExecutor(6) as threads, live(any_app(speculator), drain_s=10) as server:
        streams = under_load(server, speculator, threads)
        server.tell_to_end()
        wait_until(lambda: httpx.get(f"{server.url}/health/ready").status_code == 503)
        response = httpx.post(f"{server.url}{COMPLETIONS}", json=COMPLETION)
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "the server is going down"
        assert int(response.headers["retry-after"]) > 0
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        assert httpx.get(f"{server.url}/health").json()["status"] == "draining"
        texts = [stream.result() for stream in streams]
        server.thread.join(5)
        assert not server.thread.is_alive()
    for text in texts:
        events = text.strip().split("\n\n")
        assert events[-1] == "data: [DONE]"
        pieces = [json.loads(e.removeprefix("data: "))["choices"][0]["text"] for e in events[:-1]]
        assert "".join(pieces) == words(1, 60)


def test_what_runs_when_the_grace_is_over_is_told_so() -> None:
    speculator = AnySpeculator()
    speculator.pause_s = 0.2  # a stream would take four seconds
    start = time.monotonic()
    with ThreadPoolExecutor(6) as threads, live(any_app(speculator), drain_s=0.1) as server:
        streams = under_load(server, speculator, threads)
        server.tell_to_end()
        texts = [stream.result() for stream in streams]
        server.thread.join(5)
        assert not server.thread.is_alive()
    assert time.monotonic() - start < 4
    assert all("the server is shutting down" in text for text in texts)
    assert not speculator.rows


def test_a_server_whose_engine_dies_answers_and_ends() -> None:
    class Dying(AnySpeculator):
        def step(self, num_draft_tokens: int) -> list[StepResult]:
            super().step(num_draft_tokens)
            raise SystemExit("out of the thread")

    speculator = Dying()
    speculator.go.clear()
    app = any_app(speculator)
    with ThreadPoolExecutor(6) as threads, live(app) as server:
        request = {**LONG, "stream": True}
        streams = [threads.submit(stream_end, server.url, request) for _ in range(6)]
        wait_until(lambda: app.state.model.worker.num_open == 6)
        speculator.go.set()
        texts = [stream.result() for stream in streams]
        server.thread.join(5)
        assert not server.thread.is_alive()
        assert server.server.has_failed
    assert all("the engine's thread died" in text for text in texts)


def test_health_answers_at_once_while_the_engine_works() -> None:
    speculator = AnySpeculator()
    speculator.pause_s = 0.2
    with ThreadPoolExecutor(6) as threads, live(any_app(speculator)) as server:
        streams = under_load(server, speculator, threads)
        with httpx.Client() as client:
            client.get(f"{server.url}/health")
            start = time.monotonic()
            for _ in range(10):
                assert client.get(f"{server.url}/health").status_code == 200
            assert time.monotonic() - start < 1
        server.server.force_exit = True
        server.tell_to_end()
        for stream in streams:
            stream.result()


# The socket


def test_a_port_that_somebody_has_is_found_before_anything_is_loaded() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="cannot listen") as caught:
            bind("127.0.0.1", port)
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "--port" in str(caught.value)


def test_addresses() -> None:
    with bind("localhost", 0) as taken:
        assert taken.getsockname()[1] > 0
    with pytest.raises(UserError, match="no such address"):
        bind("no.such.host.invalid", 0)
    with pytest.raises(UserError, match="cannot listen"):
        bind("192.0.2.1", 0)  # of nobody's machine (RFC 5737)
    if socket.has_ipv6:
        with bind("::1", 0) as taken:
            assert taken.family == socket.AF_INET6


def test_a_slow_reader_holds_nobody_up() -> None:
    speculator = AnySpeculator()
    with live(any_app(speculator)) as server:
        done = threading.Event()

        def read_slowly() -> None:
            with httpx.stream("POST", f"{server.url}{CHAT}", json={
                "model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": 60,
            }) as response:  # fmt: skip
                next(response.iter_raw())
                done.wait(10)

        reader = threading.Thread(target=read_slowly)
        reader.start()
        try:
            wait_until(lambda: not speculator.rows)
            assert httpx.post(f"{server.url}{COMPLETIONS}", json=COMPLETION).status_code == 200
        finally:
            done.set()
            reader.join()
