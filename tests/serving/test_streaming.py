"""Chunks on their own: what happens to the engine's events when nobody wants them any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from neuron_spec.engine.events import Event, FinishEvent, Timing, TokenEvent
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.serving.streaming import Answer, chunks, whole


async def events(*, is_closed: list[bool]) -> AsyncGenerator[Event, None]:
    try:
        for token in range(3):
            yield TokenEvent(1, token, "" if token == 1 else f"{token} ", "plain")
        yield FinishEvent(1, "length", "rest", AcceptanceCounts(), Timing(0, 0, 0))
    finally:
        is_closed.append(True)


def test_closing_the_chunks_closes_the_events() -> None:
    async def main() -> list[bool]:
        is_closed: list[bool] = []
        streams = [events(is_closed=is_closed) for _ in range(2)]
        stream = chunks(Answer("completion", "m", 1), streams, include_usage=False)
        await anext(stream)
        assert is_closed == []
        await stream.aclose()
        return list(is_closed)  # `streams` still names them: no garbage was collected

    assert asyncio.run(main()) == [True]  # the second was never begun


def test_empty_pieces_are_not_sent_and_the_end_carries_what_was_held() -> None:
    async def main() -> list[str]:
        answer = Answer("completion", "m", 1)
        return [c async for c in chunks(answer, [events(is_closed=[])], include_usage=True)]

    *pieces, usage, done = asyncio.run(main())
    choices = [json.loads(piece.removeprefix("data: "))["choices"][0] for piece in pieces]
    assert [choice["text"] for choice in choices] == ["0 ", "2 ", "rest", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] == 3
    assert done == "data: [DONE]\n\n"


def test_a_whole_answer_joins_all_pieces() -> None:
    body = asyncio.run(whole(Answer("chat", "m", 2), [events(is_closed=[]) for _ in range(2)]))
    contents = [choice["message"]["content"] for choice in body["choices"]]
    assert contents == ["0 2 rest"] * 2
    assert body["usage"]["total_tokens"] == 8
