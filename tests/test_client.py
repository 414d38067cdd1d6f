"""The client of OpenAI-compatible servers: what it takes from whole and streamed answers, and what
it says of servers that answer otherwise."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from neuron_spec.client import API_KEY, AnswerError, OpenAIClient, extra_fields, request_of
from neuron_spec.errors import UserError

CARD = {"id": "m", "owned_by": "someone"}


def stream(*chunks: Any, done: bool = True) -> httpx.Response:
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    text += "data: [DONE]\n\n" if done else ""
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


def client(answer: Any, seen: list[httpx.Request] | None = None) -> OpenAIClient:
    def handler(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [CARD]})
        if isinstance(answer, Exception):
            raise answer
        result: httpx.Response = answer
        return result

    return OpenAIClient("http://test/v1/", transport=httpx.MockTransport(handler))


def test_a_whole_answer() -> None:
    choice = {"text": "a b", "finish_reason": "stop", "logprobs": {"tokens": ["a", " b"]}}
    body = {"choices": [choice], "usage": {"completion_tokens": 2}}
    answer = client(httpx.Response(200, json=body)).ask("completions", {"prompt": "p"})
    assert (answer.text, answer.num_tokens, answer.finish_reason) == ("a b", 2, "stop")
    assert answer.logprobs == {"tokens": ["a", " b"]}
    assert answer.ttft_s == answer.last_s
    assert answer.ttft_s is not None
    assert 0 < answer.ttft_s <= answer.total_s


def test_a_stream_is_put_together() -> None:
    answer = client(
        stream(
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [1]}}]},
            {"choices": [{"delta": {"content": " b"}, "logprobs": {"content": [2]}}]},
            {"choices": [{"delta": {}, "finish_reason": "length"}]},
            {"choices": [], "usage": {"completion_tokens": 5}},
        )
    ).ask("chat/completions", {})
    assert [text for _, text in answer.chunks] == ["a", " b"]
    assert (answer.text, answer.num_tokens, answer.finish_reason) == ("a b", 5, "length")
    assert answer.logprobs == {"content": [1, 2]}


def test_what_was_not_told_is_none() -> None:
    last = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
    answer = client(stream(last, done=False)).ask("chat/completions", {})
    assert (answer.num_tokens, answer.usage, answer.logprobs) == (None, None, None)
    empty = client(stream({"choices": [{"delta": {}}]})).ask("chat/completions", {})
    assert (empty.text, empty.ttft_s, empty.last_s) == ("", None, None)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (httpx.Response(503, text="busy"), "status 503", "busy"),
        (httpx.Response(401, json={}), "status 401", API_KEY),
        (httpx.Response(404, json={}), "status 404", "'m'"),
        (httpx.Response(200, text="<html>"), "does not answer", "<html>"),
        (httpx.Response(200, json=[1]), "does not answer", "[1]"),
        (httpx.Response(200, json={"choices": [3]}), "does not answer", "choices"),
        (httpx.Response(200, json={"choices": []}), "does not answer", "no choice"),
        (stream({"error": {"message": "full"}}), "error in the answer", "full"),
        (stream({"choices": [{"text": "a"}]}, done=False), "the stream broke off", ""),
        (httpx.ReadTimeout("slow"), "time over", "more time"),
        (httpx.ConnectError("refused"), "cannot be reached: refused", "start the server"),
    ],
)
def test_failures_have_a_kind_and_say_what_was_found(answer: Any, kind: str, words: str) -> None:
    with pytest.raises(AnswerError) as caught:
        client(answer).ask("completions", {})
    assert caught.value.kind.startswith(kind)
    assert words in str(caught.value)
    assert "test/v1" in str(caught.value)


def test_the_key_goes_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[httpx.Request] = []
    monkeypatch.setenv(API_KEY, "secret")
    one = client(httpx.Response(404), seen)
    with pytest.raises(AnswerError) as caught:
        one.ask("completions", {})
    assert {request.headers["authorization"] for request in seen} == {"Bearer secret"}
    assert "secret" not in str(caught.value)
    monkeypatch.delenv(API_KEY)
    client(httpx.Response(404), seen := [])
    assert all("authorization" not in request.headers for request in seen)


def test_the_card_and_the_metrics() -> None:
    one = client(httpx.Response(200, text="vllm:x 1"))
    assert (one.model, one.card(), one.metrics()) == ("m", CARD, "vllm:x 1")
    assert client(httpx.Response(404)).metrics() is None
    assert client(httpx.ConnectError("refused")).metrics() is None
    other = OpenAIClient(
        "http://test/v1",
        "not-listed",
        transport=httpx.MockTransport(lambda request: httpx.Response(200, json={"data": [CARD]})),
    )
    assert other.card() == {}


def test_prompts_go_where_they_belong() -> None:
    options = {"max_new_tokens": 3, "temperature": 0, "seed": None}
    text = request_of("p", options)
    assert text == ("completions", {"prompt": "p", "max_tokens": 3, "temperature": 0})
    assert request_of((1, 2), {}) == ("completions", {"prompt": [1, 2]})
    messages = [{"role": "user", "content": "hi"}]
    assert request_of(messages, {}) == ("chat/completions", {"messages": messages})


def test_extra_fields() -> None:
    assert extra_fields(None) == {}
    assert extra_fields('{"speculate": false}') == {"speculate": False}
    for text in ("speculate", "[1]", "3"):
        with pytest.raises(UserError, match="not fields of a request"):
            extra_fields(text)
