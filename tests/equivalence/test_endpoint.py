"""An OpenAI-compatible server as a system, on a transport without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from conftest import WordTokenizer

from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine import Session
from neuron_spec.equivalence import compare_systems
from neuron_spec.equivalence.endpoint import EndpointSystem
from neuron_spec.equivalence.systems import Alternative, Ask, SessionSystem
from neuron_spec.errors import UserError

Handler = Callable[[dict[str, Any]], Any]


def server(handler: Handler, asked: list[dict[str, Any]] | None = None) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "the-model"}]})
        assert request.url.path == "/v1/completions"
        body = json.loads(request.content)
        if asked is not None:
            asked.append(body)
        result = handler(body)
        return result if isinstance(result, httpx.Response) else httpx.Response(200, json=result)

    return httpx.MockTransport(answer)


def completion(text: str, logprobs: Any = None) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": len(text.split())}
    return {"choices": [{"text": text, "logprobs": logprobs}], "usage": usage}


def told(words: list[str], *tops: dict[str, float]) -> dict[str, Any]:
    values = [-0.5] * len(words)
    logprobs = {"tokens": words, "token_logprobs": values, "top_logprobs": list(tops)}
    return completion("".join(words), logprobs)


def system(handler: Handler, asked: list[Any] | None = None, **options: Any) -> EndpointSystem:
    return EndpointSystem("http://test/v1", transport=server(handler, asked), **options)


def test_what_is_asked_and_what_comes_back() -> None:
    asked: list[dict[str, Any]] = []
    words, top = ["a", " b"], {"a": -0.1, "z": -2.1}
    endpoint = system(lambda body: told(words, top, {" b": -0.5}), asked)
    options = {"temperature": 0.7, "ignore_eos": True, "logprobs": 3}
    (reply,) = endpoint.reply([Ask("p", 7, options, seed=5)])
    assert asked[-1] == {
        "model": "the-model",
        "prompt": "p",
        "max_tokens": 7,
        "temperature": 0.7,
        "ignore_eos": True,
        "seed": 5,
        "logprobs": 5,
    }
    assert (reply.text, reply.num_tokens, reply.token_ids) == ("a b", 2, None)
    assert reply.logprobs == (-0.5, -0.5)
    assert endpoint.alternatives("p", reply, 0) == (
        0,
        [Alternative("a", 0.0), Alternative("z", pytest.approx(2.0))],
    )
    assert endpoint.alternatives("p", reply, 2) == (1, [Alternative(" b", 0.0)])


def test_greedy_is_the_default_and_seeds_are_left_out() -> None:
    asked: list[dict[str, Any]] = []
    system(lambda body: completion("a"), asked, model="m").reply([Ask([3, 4], 2)])
    assert asked[-1] == {"model": "m", "prompt": [3, 4], "max_tokens": 2, "temperature": 0}


def test_a_server_that_refuses_logprobs_is_asked_without() -> None:
    def handler(body: dict[str, Any]) -> Any:
        return httpx.Response(400, json={}) if "logprobs" in body else completion("a b")

    endpoint = system(handler)
    (reply,) = endpoint.reply([Ask("p", 2)])
    assert (reply.text, reply.logprobs) == ("a b", None)
    assert endpoint.alternatives("p", reply, 0) is None


def test_answers_come_in_the_order_of_the_questions() -> None:
    endpoint = system(lambda body: completion(f"to {body['prompt']}"))
    replies = endpoint.reply([Ask(f"q{n}", 4) for n in range(9)])
    assert [reply.text for reply in replies] == [f"to q{n}" for n in range(9)]


def test_conversations_become_ids_where_a_tokenizer_is_known() -> None:
    messages = [{"role": "user", "content": "7 8"}]
    asked: list[dict[str, Any]] = []
    system(lambda body: completion("a"), asked, tokenizer=WordTokenizer()).reply([Ask(messages, 2)])
    assert asked[-1]["prompt"] == [7, 8]


CHAT_TOP = [{"token": "a", "logprob": -0.1}, {"token": "z", "logprob": -2.1}]


def chat_only(request: httpx.Request) -> httpx.Response:
    """Knows conversations only, and streams whatever it is asked for; tells no usage."""
    if request.url.path != "/v1/chat/completions":
        return httpx.Response(404, json={"detail": "Not Found"})
    body = json.loads(request.content)
    logprobs = {"content": [{"token": "a", "logprob": -0.1, "top_logprobs": CHAT_TOP}]}
    chunks = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "a"}, "logprobs": logprobs}]},
        {"choices": [{"delta": {"content": f" {body['max_tokens']}"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    ]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize("tokenizer", [None, WordTokenizer()])
def test_a_server_of_conversations_only(tokenizer: WordTokenizer | None) -> None:
    endpoint = EndpointSystem(
        "http://test/v1", "m", tokenizer=tokenizer, transport=httpx.MockTransport(chat_only)
    )
    (reply,) = endpoint.reply([Ask([{"role": "user", "content": "7 8"}], 3)])
    assert (reply.text, reply.num_tokens, reply.token_ids) == ("a 3", None, None)
    assert endpoint.alternatives("p", reply, 0) == (
        0,
        [Alternative("a", 0.0), Alternative("z", pytest.approx(2.0))],
    )
    text_only = EndpointSystem("http://test/v1", "m", transport=httpx.MockTransport(chat_only))
    with pytest.raises(UserError, match="give prompts as `messages`"):
        text_only.reply([Ask("plain text", 3)])


def test_extra_fields_go_with_every_request() -> None:
    asked: list[dict[str, Any]] = []
    system(lambda body: completion("a"), asked, extra={"switch": 1}).reply([Ask("p", 2)])
    assert [body["switch"] for body in asked] == [1, 1]


@pytest.mark.parametrize(
    "answer", [httpx.Response(500, text="oh"), httpx.Response(200, text="hm"), {"choices": []}]
)
def test_a_server_of_another_protocol_is_told(answer: Any) -> None:
    def handler(body: dict[str, Any]) -> Any:
        return completion("a") if body["max_tokens"] == 1 else answer

    words = "status 500|does not answer|no choice"
    with pytest.raises(UserError, match=words):
        system(handler).reply([Ask("p", 2)])


def test_a_server_that_is_not_there() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(UserError, match="cannot be reached: refused"):
        EndpointSystem("http://test/v1", transport=httpx.MockTransport(refuse))
    with pytest.raises(UserError, match="names no model"):
        EndpointSystem(
            "http://test/v1", transport=httpx.MockTransport(lambda r: httpx.Response(200, json={}))
        )


def test_an_endpoint_against_a_session() -> None:
    """By text: one differs in the third token."""
    replies = {(1,): (10, 11, 12, 13)}
    session = Session(ScriptedSpeculator(replies, accepted=[1]), WordTokenizer())
    reference = SessionSystem(session, speculate=False)
    texts = {"1": "10 11 12 13 "}
    same = system(lambda body: completion(texts[body["prompt"]]))
    options: dict[str, Any] = {"max_new_tokens": 4, "near_tie_margin": 0.1, "ignore_eos": True}
    (comparison,) = compare_systems(reference, same, ["1"], **options)
    assert comparison.is_identical
    other = system(lambda body: completion("10 11 19 13 "))
    (comparison,) = compare_systems(reference, other, ["1"], **options)
    divergence = comparison.divergence
    assert divergence is not None
    assert (divergence.position, divergence.kind) == (7, "defect")
