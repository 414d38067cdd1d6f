"""`include_tokens` and `speculate` on both endpoints: where every token of an answer comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import (
    CHAT,
    COMPLETIONS,
    MODEL,
    AnySpeculator,
    TestClient,
    Words,
    any_app,
    error_of,
    sse,
    with_limits,
)

from neuron_spec.engine import Session
from neuron_spec.serving.app import create_session_app

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "5 6", "max_tokens": 9, "seed": 1}
CONVERSATION: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "5 6"}],
    "max_tokens": 9,
    "seed": 1,
}
BOTH = [(COMPLETIONS, COMPLETION), (CHAT, CONVERSATION)]
TOLD = {"include_tokens": True, "include_acceptance": True}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with TestClient(any_app(), raise_server_exceptions=False) as client:
        yield client


def ask(client: Any, url: str, request: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """Text and tokens of every choice, whole and streamed the same; and the usage."""
    body = client.post(url, json=request).json()
    whole = [
        {
            "text": choice["message"]["content"] if url == CHAT else choice["text"],
            "tokens": choice.get("tokens"),
        }
        for choice in body["choices"]
    ]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed: dict[int, dict[str, Any]] = {}
    for event in sse(client.post(url, json={**request, **options}).text)[:-1]:
        for part in event["choices"]:
            choice = streamed.setdefault(part["index"], {"text": "", "tokens": None})
            choice["text"] += part["delta"].get("content", "") if url == CHAT else part["text"]
            if "tokens" in part:
                choice["tokens"] = (choice["tokens"] or []) + part["tokens"]
    assert [streamed[index] for index in sorted(streamed)] == whole
    return whole, body["usage"]


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_every_token_with_its_origin_and_step(client: Any, url: str, base: dict[str, Any]) -> None:
    (choice,), usage = ask(client, url, {**base, **TOLD})
    tokens = choice["tokens"]
    assert "".join(token["text"] for token in tokens) == choice["text"]
    assert [token["text"] for token in tokens] == [f"{token['id']} " for token in tokens]
    # Accepted are 1, then 3, then (cut off) 3 again, as the double's positions say; k is 3.
    steps = [("accepted", 1), ("corrected", 1), *[("accepted", 2)] * 3, ("bonus", 2)]
    expected = [("plain", 0), *steps, *[("accepted", 3)] * 2]
    assert [(token["origin"], token["step"]) for token in tokens] == expected
    assert [token["num_positions"] for token in tokens] == [0] + [3] * 8
    assert usage["acceptance"]["num_steps"] == 3


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_tokens_that_are_parts_of_characters_are_told_too(url: str, base: dict[str, Any]) -> None:
    class Halves(Words):
        """Two tokens a character."""

        def decode(self, token_ids: Any) -> str:
            return "é" * (len(token_ids) // 2) + "\ufffd" * (len(token_ids) % 2)

    app = create_session_app(Session(AnySpeculator(), Halves()), model_name=MODEL)
    with TestClient(app) as client:
        (choice,), _ = ask(client, url, {**base, **TOLD})
    assert [token["text"] for token in choice["tokens"]] == [*["", "é"] * 4, ""]
    assert choice["text"] == "éééé\ufffd"  # the last one was held back until the end


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_choices_have_their_own_tokens(client: Any, url: str, base: dict[str, Any]) -> None:
    choices, _ = ask(client, url, {**base, **TOLD, "n": 2})
    assert len({choice["text"] for choice in choices}) == 2
    for choice in choices:
        assert "".join(token["text"] for token in choice["tokens"]) == choice["text"]


@pytest.mark.parametrize(("url", "base"), BOTH)
@pytest.mark.parametrize("value", [None, False])
def test_tokens_are_told_only_where_asked_for(
    client: Any, url: str, base: dict[str, Any], value: bool | None
) -> None:
    (choice,), _ = ask(client, url, {**base, "include_tokens": value})
    assert choice["tokens"] is None


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_without_speculation_nothing_is_drafted_and_the_text_stays(
    client: Any, url: str, base: dict[str, Any]
) -> None:
    (on,), usage_on = ask(client, url, {**base, **TOLD, "speculate": True})
    (off,), usage_off = ask(client, url, {**base, **TOLD, "speculate": False})
    assert on["text"] == off["text"]
    assert {token["origin"] for token in off["tokens"]} == {"plain"}
    assert [token["step"] for token in off["tokens"]] == list(range(9))
    assert usage_on["acceptance"]["num_drafted_tokens"] > 0
    assert usage_off["acceptance"]["num_drafted_tokens"] == 0
    assert usage_off["acceptance"]["acceptance_length"] == 1


@pytest.mark.parametrize(("url", "base"), BOTH)
@pytest.mark.parametrize("field", ["include_tokens", "speculate"])
@pytest.mark.parametrize("value", [0, 1, "false", [], {}])
def test_only_truth_values_are_taken(
    client: Any, url: str, base: dict[str, Any], field: str, value: Any
) -> None:
    assert error_of(client.post(url, json={**base, field: value}), 400)["param"] == field


@pytest.mark.parametrize(("url", "base"), BOTH)
def test_a_server_without_a_draft_refuses_to_speculate(url: str, base: dict[str, Any]) -> None:
    with TestClient(any_app(with_limits(num_draft_tokens=0))) as client:
        error = error_of(client.post(url, json={**base, "speculate": True}), 400)
        assert (error["param"], "drafts nothing" in error["message"]) == ("speculate", True)
        assert client.post(url, json={**base, "speculate": False}).status_code == 200
