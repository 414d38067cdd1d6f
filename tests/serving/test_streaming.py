"""Chunks on their own: what happens to the engine's events when nobody wants them any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.backends.base import TokenLogprobs
from neuron_spec.engine.events import FinishEvent, Timing, TokenEvent
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.serving.app import EventStream
from neuron_spec.serving.streaming import Answer, Batch, chunks, whole


async def batches(*, is_closed: list[bool], num_choices: int = 1) -> AsyncGenerator[Batch, None]:
    counts = AcceptanceCounts()
    counts.add_step(4, 2)
    try:
        for token in range(3):
            for index in range(num_choices):
                text = "" if token == 1 else f"{token} "
                yield index, [TokenEvent(index, token, text, "plain")]
        for index in range(num_choices):
            yield index, [FinishEvent(index, "length", "rest", counts, Timing(0, 0, 0), 3)]
    finally:
        is_closed.append(True)


async def streamed(answer: Answer, **options: Any) -> list[str]:
    source = batches(is_closed=[])
    first = await anext(source)
    return [chunk async for chunk in chunks(answer, first, source, **options)]


def test_closing_the_chunks_closes_the_events() -> None:
    async def main() -> list[bool]:
        is_closed: list[bool] = []
        source = batches(is_closed=is_closed)
        stream = chunks(
            Answer("completion", "m", "id", 1), await anext(source), source, include_usage=False
        )
        await anext(stream)
        assert is_closed == []
        await stream.aclose()
        return list(is_closed)  # `source` still names it: no garbage was collected

    assert asyncio.run(main()) == [True]


def test_empty_pieces_are_not_sent_and_the_end_carries_what_was_held() -> None:
    told = asyncio.run(streamed(Answer("completion", "m", "id", 1), include_usage=True))
    *pieces, usage, done = "".join(told).removesuffix("\n\n").split("\n\n")
    choices = [json.loads(piece.removeprefix("data: "))["choices"][0] for piece in pieces]
    assert [choice["text"] for choice in choices] == ["0 ", "2 ", "rest", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] == 3
    assert done == "data: [DONE]"


def test_a_whole_answer_joins_all_pieces() -> None:
    answer = Answer("chat", "m", "id", 2, echoes=("", ""))
    body = asyncio.run(whole(answer, batches(is_closed=[], num_choices=2)))
    contents = [choice["message"]["content"] for choice in body["choices"]]
    assert contents == ["0 2 rest"] * 2
    counts = {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}
    assert body["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 0}}


def test_acceptance_is_added_up_over_the_choices() -> None:
    answer = Answer("completion", "m", "id", 2, echoes=("", ""), tells_acceptance=True)
    body = asyncio.run(whole(answer, batches(is_closed=[], num_choices=2)))
    told = body["usage"]["acceptance"]
    assert (told["num_steps"], told["num_drafted_tokens"], told["num_accepted_tokens"]) == (2, 8, 4)
    assert (told["acceptance_length"], told["steps_by_num_accepted"]) == (3.0, [0, 0, 2])
    assert told["acceptance_rate_by_position"] == [1.0, 1.0, 0.0, 0.0]


def test_a_response_that_cannot_be_sent_closes_everything_at_once() -> None:
    async def main() -> list[bool]:
        is_closed: list[bool] = []
        source = batches(is_closed=is_closed)
        answer = Answer("completion", "m", "id", 1)
        stream = chunks(answer, await anext(source), source, include_usage=False)
        response = EventStream(stream, source)

        async def send(message: Any) -> None:
            raise OSError("the client is gone")

        async def receive() -> Any:
            await asyncio.sleep(60)

        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        with suppress(Exception):
            await response(scope, receive, send)
        return list(is_closed)

    assert asyncio.run(main()) == [True]


SOME_TEXT = st.text(max_size=20)


@given(
    text=SOME_TEXT,
    model=SOME_TEXT,
    endpoint=st.sampled_from(["completion", "chat"]),
    has_logprobs=st.booleans(),
    tells_tokens=st.booleans(),
    tells_running_usage=st.booleans(),
)
def test_a_chunk_is_one_json_object_whatever_is_in_it(
    text: str, model: str, endpoint: Any, has_logprobs: bool, **tells: bool
) -> None:
    answer = Answer(endpoint, model, "id", 3, token_bytes=_spelt if has_logprobs else None, **tells)
    logprobs = TokenLogprobs(-0.5, ((5, -0.5),)) if has_logprobs else None
    event = TokenEvent(1, 5, text, "accepted", logprobs, 0, 2, 3)

    async def main() -> str:
        source = batches(is_closed=[])
        stream = chunks(answer, (0, [event]), source, include_usage=False)
        first = await anext(stream)
        await stream.aclose()
        return first

    told = asyncio.run(main()).split("\n\n")[:-1]
    if endpoint == "chat":
        opening = _choice(told.pop(0), answer)
        assert opening["delta"] == {"role": "assistant", "content": ""}
    if not text and not has_logprobs and not tells["tells_tokens"]:
        assert told == []
        return
    (chunk,) = told
    choice = _choice(chunk, answer)
    assert (
        choice["text"] if endpoint == "completion" else choice["delta"].get("content", "")
    ) == text
    assert (choice["logprobs"] is not None) == has_logprobs
    assert ("tokens" in choice) == tells["tells_tokens"]
    assert ("usage" in _data(chunk)) == tells["tells_running_usage"]


def _spelt(token: int) -> bytes:
    return b"%d" % token


def _data(chunk: str) -> dict[str, Any]:
    """What a chunk holds; its bytes are those that `json` would write."""
    data: dict[str, Any] = json.loads(chunk.removeprefix("data: "))
    assert chunk == f"data: {json.dumps(data)}"
    return data


def _choice(chunk: str, answer: Answer) -> dict[str, Any]:
    data = _data(chunk)
    assert {name: data[name] for name in ("id", "object", "created", "model")} == answer.head(
        is_chunk=True
    )
    assert list(data)[4:] == ["choices", *["usage"] * answer.tells_running_usage]
    (choice,) = data["choices"]
    return choice
