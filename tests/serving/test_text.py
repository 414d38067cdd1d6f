"""Streamed text joined is the whole text, for every block border inside multi-byte characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from served import CHAT, COMPLETIONS, MODEL, TestClient, join, sse

from neuron_spec.backends.base import Limits
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine import Session
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.serving.app import create_session_app

TEXT = "né 😀 — 日本\u200d語!"  # one to four bytes a character; a byte a token
LIMITS = Limits(batch_size=2, max_prompt_tokens=8, max_total_tokens=64, num_draft_tokens=4)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder: Path = tmp_path_factory.mktemp("text")
    return ModelTokenizer(tiny.write_target(folder / "target"))


# With 0 … 4 accepted in turn, blocks begin at every byte of every character.
@pytest.mark.parametrize("accepted", [[0], [1], [2], [3], [4], [1, 3], [4, 0, 2]])
@pytest.mark.parametrize("stop", [None, "日", "\u200d語!", "no such"])
def test_for_every_block_border(
    tokenizer: ModelTokenizer, accepted: list[int], stop: str | None
) -> None:
    prompt = tokenizer.encode("x")
    reply = tokenizer.encode(TEXT)
    speculator = ScriptedSpeculator({prompt: (*reply, 2)}, accepted=accepted, limits=LIMITS)
    app = create_session_app(Session(speculator, tokenizer), model_name=MODEL)
    wanted = TEXT if stop is None or stop not in TEXT else TEXT[: TEXT.index(stop)]
    request: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 50, "stop": stop}
    with TestClient(app) as client:
        whole = client.post(COMPLETIONS, json=request).json()["choices"][0]
        assert (whole["text"], whole["finish_reason"]) == (wanted, "stop")
        for offset in range(len(accepted)):  # blocks begin elsewhere each time
            events = sse(client.post(COMPLETIONS, json={**request, "stream": True}).text)
            ((choice,), _) = join(COMPLETIONS, events)
            assert choice["text"] == wanted, offset
            pieces = [event["choices"][0]["text"] for event in events[:-1]]
            assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("limit", range(1, 28))
def test_for_every_limit_inside_a_character(tokenizer: ModelTokenizer, limit: int) -> None:
    reply = tokenizer.encode(TEXT)
    chat = tokenizer.encode([{"role": "user", "content": "x"}])
    limits = Limits(batch_size=2, max_prompt_tokens=64, max_total_tokens=128, num_draft_tokens=4)
    speculator = ScriptedSpeculator({chat: (*reply, 2)}, accepted=[4, 1], limits=limits)
    app = create_session_app(Session(speculator, tokenizer), model_name=MODEL)
    messages = [{"role": "user", "content": "x"}]
    request: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": limit}
    with TestClient(app) as client:
        body = client.post(CHAT, json=request).json()
        whole = body["choices"][0]["message"]["content"]
        ((choice,), _) = join(CHAT, sse(client.post(CHAT, json={**request, "stream": True}).text))
    assert choice["text"] == whole
    assert whole == TEXT.encode()[:limit].decode("utf-8", "replace")
    num_tokens = min(limit, len(reply) + 1)
    assert body["usage"]["completion_tokens"] == num_tokens
    is_whole = limit > len(reply)
    assert body["choices"][0]["finish_reason"] == ("stop" if is_whole else "length")
