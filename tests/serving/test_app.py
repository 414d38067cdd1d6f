"""The HTTP surface: OpenAI's protocol, whole and streamed, and errors in OpenAI's form only."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import tiny
from conftest import WordTokenizer
from fastapi import FastAPI
from served import TestClient, error_of, sse

from neuron_spec import compile_model, load, load_spec, prepare
from neuron_spec.artifacts import Artifact
from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine import Session
from neuron_spec.serving.app import create_app, create_session_app

MODEL = "scripted"
REPLIES = {(number,): (*(number * 10 + i for i in range(5)), 2) for number in range(3, 30)}
REPLIES[(3, 4)] = (70, 71, 2)
LIMITS = Limits(batch_size=2, max_prompt_tokens=8, max_total_tokens=64, num_draft_tokens=4)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "3"}
CONVERSATION: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "3"}]}
BOTH = [(COMPLETIONS, COMPLETION), (CHAT, CONVERSATION)]
USAGE = {
    "prompt_tokens": 1,
    "completion_tokens": 6,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 0},
}


class Speculator(ScriptedSpeculator):
    """Can fail, can wait, and tells how many slots are taken."""

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        super().__init__(REPLIES, accepted=[1, 0, 3], limits=limits)
        self.is_broken = False
        self.fails_at_step: int | None = None
        self.pause_s = 0.0

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        self._fail_if_broken()
        return super().prefill(slot, prompt_ids, decoding)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        time.sleep(self.pause_s)
        self._fail_if_broken()
        if self.fails_at_step is not None:
            self.fails_at_step -= 1
            if self.fails_at_step == 0:
                self.fails_at_step = None
                raise RuntimeError("the device is gone")
        return super().step(num_draft_tokens)

    def _fail_if_broken(self) -> None:
        if self.is_broken:
            raise RuntimeError("the device is gone")

    @property
    def num_taken(self) -> int:
        return len(self._running)


@pytest.fixture
def speculator() -> Speculator:
    return Speculator()


@pytest.fixture
def app(speculator: Speculator) -> FastAPI:
    return create_session_app(Session(speculator, WordTokenizer()), model_name=MODEL)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


# Whole answers


def test_a_completion(client: TestClient) -> None:
    body = client.post(COMPLETIONS, json=COMPLETION).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == MODEL
    text = "30 31 32 33 34 "
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    assert body["choices"] == [choice]
    assert body["usage"] == USAGE


def test_a_conversation(client: TestClient) -> None:
    body = client.post(CHAT, json=CONVERSATION).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    message = {"role": "assistant", "content": "30 31 32 33 34 "}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert body["choices"] == [choice]
    assert body["usage"]["total_tokens"] == 7


@pytest.mark.parametrize(
    ("fields", "text", "reason", "num_tokens"),
    [
        ({"max_tokens": 2}, "30 31 ", "length", 2),
        ({"max_tokens": 0}, "", "length", 0),
        ({"stop": "32"}, "30 31 ", "stop", 3),
        ({"stop": ["zz", " 33"]}, "30 31 32", "stop", 4),
        ({"ignore_eos": True, "max_tokens": 7}, "30 31 32 33 34 2 2 ", "length", 7),
        ({"temperature": 0, "top_p": 0.1, "n": 1, "seed": 4}, "30 31 32 33 34 ", "stop", 6),
        ({"stop_token_ids": [32]}, "30 31 ", "stop", 3),
        ({"stop": "30", "min_tokens": 2}, "30 31 32 33 34 ", "stop", 6),
        (
            {"response_format": {"type": "text"}, "n": None, "stop": None},
            "30 31 32 33 34 ",
            "stop",
            6,
        ),
    ],
)
@pytest.mark.parametrize(("url", "base"), BOTH)
def test_fields_that_are_honoured(
    client: TestClient,
    url: str,
    base: dict[str, Any],
    fields: dict[str, Any],
    text: str,
    reason: str,
    num_tokens: int,
) -> None:
    body = client.post(url, json={**base, **fields}).json()
    (choice,) = body["choices"]
    found = choice["message"]["content"] if url == CHAT else choice["text"]
    assert (found, choice["finish_reason"]) == (text, reason)
    assert body["usage"]["completion_tokens"] == num_tokens
    streamed = sse(client.post(url, json={**base, **fields, "stream": True}).text)
    assert stream_text(url, streamed) == {0: text}
    assert stream_reasons(streamed) == [(0, reason)]


@pytest.mark.parametrize(
    ("prompt", "texts", "num_prompt_tokens"),
    [
        (["5", "4"], ["50 51 ", "40 41 "], 2),
        ([5], ["50 51 "], 1),
        ([3, 4], ["70 71 "], 2),
        ([[3, 4], [6], [7]], ["70 71 ", "60 61 ", "70 71 "], 4),
    ],
)
def test_prompts_as_lists_and_token_ids(
    client: TestClient, prompt: list[Any], texts: list[str], num_prompt_tokens: int
) -> None:
    request = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
    body = client.post(COMPLETIONS, json=request).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == list(enumerate(texts))
    assert body["usage"]["prompt_tokens"] == num_prompt_tokens
    assert body["usage"]["completion_tokens"] == 2 * len(texts)
    streamed = sse(client.post(COMPLETIONS, json={**request, "stream": True}).text)
    assert stream_text(COMPLETIONS, streamed) == dict(enumerate(texts))
    assert streamed[-1] == "[DONE]"
    assert sorted(stream_reasons(streamed)) == [(i, "length") for i in range(len(texts))]


# Streams


def stream_text(url: str, events: list[Any]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            piece = choice["delta"].get("content", "") if url == CHAT else choice["text"]
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return texts


def stream_reasons(events: list[Any]) -> list[tuple[int, str]]:
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    return [(c["index"], c["finish_reason"]) for c in choices if c["finish_reason"] is not None]


def test_a_streamed_conversation(client: TestClient) -> None:
    response = client.post(CHAT, json={**CONVERSATION, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = sse(response.text)
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    first, *middle, last = events[:-1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [event["choices"][0]["delta"] for event in middle]
    assert deltas == [{"content": f"3{digit} "} for digit in range(5)]
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert {event["object"] for event in events[:-1]} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events[:-1]}) == 1
    assert all("usage" not in event for event in events[:-1])


def test_a_streamed_completion(client: TestClient) -> None:
    events = sse(client.post(COMPLETIONS, json={**COMPLETION, "stream": True}).text)
    assert [event["choices"][0]["text"] for event in events[:-1]] == [
        *(f"3{digit} " for digit in range(5)),
        "",
    ]
    assert {event["object"] for event in events[:-1]} == {"text_completion"}


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_usage_of_a_stream_on_request(client: TestClient, url: str, base: dict[str, Any]) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = sse(client.post(url, json={**base, **options}).text)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == USAGE


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_usage_so_far_in_every_chunk_on_request(
    client: TestClient, url: str, base: dict[str, Any]
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    request = {**base, "stream": True, "stream_options": options}
    *events, done = sse(client.post(url, json=request).text)
    assert done == "[DONE]"
    counts = [event["usage"]["completion_tokens"] for event in events if event["choices"]]
    assert counts == sorted(counts)
    texts = [event for event in events if event["choices"] and _text(event["choices"][0])]
    assert [event["usage"]["completion_tokens"] for event in texts] == [1, 2, 3, 4, 5]
    assert events[-1]["usage"] == USAGE
    without = {**request, "stream_options": {"continuous_usage_stats": True}}
    assert "usage" not in client.post(url, json=without).text


def _text(choice: dict[str, Any]) -> str:
    text: str = choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text


# Refusals


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.7),
        ("temperature", -1),
        ("temperature", "0"),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logprobs", "yes"),
        ("min_tokens", -1),
        ("min_tokens", 10**9),
        ("stop_token_ids", [-1]),
        ("response_format", {"type": "json_object"}),
        ("include_acceptance", 1),
        ("stop", ""),
        ("stop", ["1", "2", "3", "4", "5"]),
        ("stop", 5),
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("stream", "sometimes"),
        ("stream_options", {"include_usage": True}),
        ("seed", "x"),
        ("seed", 2**63),
        ("tools", []),
        ("temprature", 0),
    ],
)
@pytest.mark.parametrize(("url", "base"), BOTH)
def test_a_field_that_cannot_be_honoured_is_named(
    client: TestClient, url: str, base: dict[str, Any], field: str, value: Any
) -> None:
    request = {"max_tokens": 16, **base, field: value}
    for stream in () if field == "stream" else (False, True):
        if not (stream and field == "stream_options"):
            error = error_of(client.post(url, json={**request, "stream": stream}), 400)
            assert error["param"] == field
            assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", 1),
        ("logprobs", 3),
        ("logprobs", True),
        ("best_of", 3),
        ("suffix", "x"),
        ("prompt", 5),
        ("prompt", []),
        ("prompt", ""),
        ("prompt", [""]),
        ("prompt", ["3", 4]),
        ("prompt", [3.0]),
        ("prompt", [True]),
        ("prompt", [[3], []]),
        ("prompt", " ".join("3" * 9)),
        ("prompt", {"text": "3"}),
    ],
)
def test_fields_of_completions_only(client: TestClient, field: str, value: Any) -> None:
    for stream in (False, True):  # also where a stream was asked for: nothing is sent before
        request = {**COMPLETION, field: value, "stream": stream}
        assert error_of(client.post(COMPLETIONS, json=request), 400)["param"] == field
    assert client.post(COMPLETIONS, json=COMPLETION).status_code == 200


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "user", "content": ""}], "messages"),
        ([{"role": "user", "content": "3 " * 9}], "messages"),
        ([{"role": "robot", "content": "3"}], "messages.0.role"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content"),
        ([{"role": "user", "content": "3", "tool_calls": []}], "messages.0.tool_calls"),
    ],
)
def test_messages_that_cannot_be_honoured(client: TestClient, messages: Any, param: str) -> None:
    error = error_of(client.post(CHAT, json={**CONVERSATION, "messages": messages}), 400)
    assert error["param"] == param


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_a_missing_field_is_named(client: TestClient, url: str, base: dict[str, Any]) -> None:
    for field in base:
        request = {name: value for name, value in base.items() if name != field}
        assert error_of(client.post(url, json=request), 400)["param"] == field


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_another_model_is_not_found(client: TestClient, url: str, base: dict[str, Any]) -> None:
    error = error_of(client.post(url, json={**base, "model": "gpt-4"}), 404)
    assert error["param"] == "model"
    assert "gpt-4" in error["message"]


@pytest.mark.parametrize("body", [b'{"model": ', b"", b"\xff\xfe", b"[1]", b'"text"', b"null"])
@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
def test_a_body_that_is_no_request(client: TestClient, url: str, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert error_of(client.post(url, content=body, headers=headers), 400)["param"] is None


def test_a_form_instead_of_json(client: TestClient) -> None:
    error_of(client.post(COMPLETIONS, data={"model": MODEL, "prompt": "3"}), 400)


@pytest.mark.parametrize("field", ["model", "temperature", "user", "unknown"])
def test_half_a_character_in_a_field_is_answered(client: TestClient, field: str) -> None:
    body = json.dumps({**COMPLETION, field: "\ud800"}).encode()
    response = client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    if field == "user":
        assert response.status_code == 200
    else:
        error_of(response, 404 if field == "model" else 400)


def test_other_paths_and_methods(client: TestClient) -> None:
    assert "/v1/embeddings" in error_of(client.post("/v1/embeddings", json={}), 404)["message"]
    assert "GET" in error_of(client.get(COMPLETIONS), 405)["message"]


# Life of the server


def test_several_requests_at_once(client: TestClient) -> None:
    def ask(number: int) -> str:
        request = {"model": MODEL, "prompt": str(number), "max_tokens": 3}
        text: str = client.post(COMPLETIONS, json=request).json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(8) as threads:
        numbers = list(range(3, 30)) * 2
        assert list(threads.map(ask, numbers)) == [f"{n}0 {n}1 {n}2 " for n in numbers]


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_a_backend_that_fails_is_an_error_and_the_next_request_is_served(
    client: TestClient, speculator: Speculator, url: str, base: dict[str, Any]
) -> None:
    speculator.is_broken = True
    assert "the device is gone" in error_of(client.post(url, json=base), 500)["message"]
    # Nothing was sent yet: a stream, too, has the error's own status.
    response = client.post(url, json={**base, "stream": True})
    assert "the device is gone" in error_of(response, 500)["message"]
    speculator.is_broken = False
    assert client.post(url, json=base).status_code == 200
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_a_step_that_fails_is_told_in_the_stream(
    client: TestClient, speculator: Speculator, url: str, base: dict[str, Any]
) -> None:
    speculator.fails_at_step = 2
    *before, last = sse(client.post(url, json={**base, "stream": True}).text)
    assert last["error"]["type"] == "server_error"
    assert "the device is gone" in last["error"]["message"]
    assert stream_text(url, [*before, last])[0].startswith("30 31 ")
    assert client.post(url, json=base).status_code == 200


def test_an_unexpected_error_is_told_in_openais_form_without_its_insides(app: FastAPI) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("a secret")

    with TestClient(app, raise_server_exceptions=False) as client:
        assert "secret" not in error_of(client.get("/broken"), 500)["message"]


@pytest.mark.parametrize("always", [False, True])
def test_the_card_says_whether_speculation_can_be_switched_off(always: bool) -> None:
    speculator = ScriptedSpeculator({}, limits=replace(LIMITS, always_drafts=always))
    app = create_session_app(Session(speculator, WordTokenizer()), model_name=MODEL)
    with TestClient(app) as client:
        assert client.get("/v1/models").json()["data"][0]["always_drafts"] is always


def test_models_and_health(client: TestClient) -> None:
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [(m["id"], m["object"]) for m in body["data"]] == [(MODEL, "model")]
    assert client.get(f"/v1/models/{MODEL}").json() == body["data"][0]
    assert error_of(client.get("/v1/models/gpt-4"), 404)["param"] == "model"
    health = client.get("/health").json()
    assert (health["status"], health["live"], health["ready"]) == ("ok", True, True)
    assert (health["num_running"], health["num_waiting"], health["model"]) == (0, 0, MODEL)
    for path in ("live", "ready"):
        assert client.get(f"/health/{path}").status_code == 200


def test_health_tells_when_the_engine_has_stopped(app: FastAPI, client: TestClient) -> None:
    app.state.model.worker.stop()
    for path in ("/health", "/health/live", "/health/ready"):
        response = client.get(path)
        assert (response.status_code, response.json()["status"]) == (503, "engine stopped")
    assert "stopped" in error_of(client.post(COMPLETIONS, json=COMPLETION), 500)["message"]


def test_the_end_of_the_server_does_not_wait_for_long_answers(speculator: Speculator) -> None:
    """A request of half a minute runs; stopping takes a step's time."""
    speculator.pause_s = 0.5
    app = create_session_app(Session(speculator, WordTokenizer()), model_name=MODEL)
    answers: list[Any] = []
    request = {**COMPLETION, "ignore_eos": True, "max_tokens": 60}
    with TestClient(app, raise_server_exceptions=False) as client:
        caller = threading.Thread(
            target=lambda: answers.append(client.post(COMPLETIONS, json=request))
        )
        caller.start()
        while speculator.num_taken == 0:
            time.sleep(0.01)
        start = time.monotonic()
        app.state.model.worker.stop()
        assert time.monotonic() - start < 5
        caller.join(5)
    assert "shutting down" in error_of(answers[0], 500)["message"]


Message = dict[str, Any]


async def hang_up(
    app: FastAPI, url: str, request: dict[str, Any], *, spec_version: str, after: int
) -> list[Message]:
    """Speak to the application as a web server would, since the test client cannot hang up.

    The client leaves after so many messages of the answer, or, with 0, once the engine is at work.
    """
    sent: list[Message] = []
    received = [{"type": "http.request", "body": json.dumps(request).encode()}]
    gone = asyncio.Event()

    async def receive() -> Message:
        if received:
            return received.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if gone.is_set() and after:
            raise OSError("the client is gone")
        sent.append(message)
        if len(sent) == after:
            gone.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": spec_version},
        "http_version": "1.1", "method": "POST", "path": url, "raw_path": url.encode(),
        "query_string": b"", "scheme": "http", "client": ("test", 1), "server": ("test", 80),
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    caller = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    if after == 0:
        await asyncio.sleep(0.1)
        gone.set()
    await asyncio.wait([caller], timeout=10)
    assert caller.done()
    caller.exception()  # what a web server does with it is its own affair
    return sent


async def slots_are_free(app: FastAPI, speculator: Speculator) -> bool:
    deadline = time.monotonic() + 5
    while speculator.num_taken and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    return speculator.num_taken == 0 and bool(app.state.model.worker.is_alive)


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize(("url", "base"), BOTH)
def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_the_slot(
    speculator: Speculator, app: FastAPI, url: str, base: dict[str, Any], spec_version: str
) -> None:
    speculator.pause_s = 0.2  # the whole answer would take more than four seconds
    request = {**base, "ignore_eos": True, "max_tokens": 60, "stream": True}

    async def main() -> float:
        async with app.router.lifespan_context(app):
            start = time.monotonic()
            sent = await hang_up(app, url, request, spec_version=spec_version, after=3)
            assert len(sent) == 3
            assert await slots_are_free(app, speculator)
            return time.monotonic() - start

    assert asyncio.run(main()) < 2


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_a_client_that_leaves_before_a_whole_answer_frees_the_slot(
    speculator: Speculator, app: FastAPI, url: str, base: dict[str, Any]
) -> None:
    speculator.pause_s = 0.2
    request = {**base, "ignore_eos": True, "max_tokens": 60}

    async def main() -> float:
        async with app.router.lifespan_context(app):
            start = time.monotonic()
            sent = await hang_up(app, url, request, spec_version="2.3", after=0)
            assert sent[0]["status"] == 499
            assert await slots_are_free(app, speculator)
            return time.monotonic() - start

    assert asyncio.run(main()) < 2


# A real artifact


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("served")
    tiny.write_target(folder / "target")
    tiny.write_eagle(folder / "eagle")
    path = tiny.write_spec(
        folder / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 64, "max_total_tokens": 96, "batch_size": 2},
    )
    spec = load_spec(path)
    return compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")


def test_an_artifact_is_served_under_its_specs_name_with_its_claims(artifact: Artifact) -> None:
    with TestClient(create_app(artifact)) as client:
        (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == "tiny"
    assert (model["speculation"], model["num_draft_tokens"]) == (True, 3)
    assert (model["max_model_len"], model["default_temperature"]) == (96, 0)
    assert model["verification_rule"] == "greedy"
    levels = {claim["level"]: claim["status"] for claim in model["claims"]}
    assert levels["bitwise identity"] == "stated"
    assert all(claim["source"] for claim in model["claims"])
    assert model["numerics"]


@pytest.mark.parametrize("speculate", [True, False])
def test_a_served_artifact_says_what_a_session_says(artifact: Artifact, speculate: bool) -> None:
    messages = [{"role": "user", "content": "Hi, né!"}]
    session = load(artifact.directory)
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True}
    chat, plain = session.generate(messages, **options), session.generate("abc", **options)
    app = create_app(artifact, model_name="mine", speculate=speculate)
    limits = {"model": "mine", "max_tokens": 20, "ignore_eos": True}
    with TestClient(app) as client:
        card = client.get("/v1/models").json()["data"][0]
        assert (card["speculation"], card["num_draft_tokens"] > 0) == (speculate, speculate)
        body = client.post(CHAT, json={"messages": messages, **limits}).json()
        assert body["choices"][0]["message"]["content"] == chat.text
        usage = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
        assert usage == (chat.num_prompt_tokens, 20)
        request = {"prompt": "abc", "stream": True, **limits}
        events = sse(client.post(COMPLETIONS, json=request).text)
        assert stream_text(COMPLETIONS, events) == {0: plain.text}


def test_requests_that_this_artifact_cannot_hold(artifact: Artifact) -> None:
    with TestClient(create_app(artifact)) as client:
        for prompt in ("x" * 65, [259], [-1], "\ud800"):
            body = json.dumps({"model": "tiny", "prompt": prompt}).encode()
            response = client.post(
                COMPLETIONS, content=body, headers={"content-type": "application/json"}
            )
            assert error_of(response, 400)["param"] == "prompt"
        messages = [{"role": "user", "content": "x" * 65}]
        response = client.post(CHAT, json={"model": "tiny", "messages": messages})
        assert error_of(response, 400)["param"] == "messages"
