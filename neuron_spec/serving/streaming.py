"""Events -> OpenAI responses, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal

from neuron_spec.engine.events import Event, FinishEvent, TokenEvent

Endpoint = Literal["completion", "chat"]
EventStream = AsyncGenerator[Event, None]
_FINISH_REASONS = {"stop": "stop", "length": "length", "cancelled": "stop"}


@dataclass
class Answer:
    """What all chunks of one response share, and the usage counted so far."""

    endpoint: Endpoint
    model: str
    num_prompt_tokens: int
    identifier: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    num_output_tokens: int = 0

    def head(self, *, is_chunk: bool) -> dict[str, Any]:
        """Id, object, time and model."""
        is_chat = self.endpoint == "chat"
        kind = ("chat.completion" if is_chat else "text_completion") + (
            ".chunk" if is_chat and is_chunk else ""
        )
        prefix = "chatcmpl" if is_chat else "cmpl"
        return {
            "id": f"{prefix}-{self.identifier}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def usage(self) -> dict[str, int]:
        """Token counts."""
        total = self.num_prompt_tokens + self.num_output_tokens
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": total,
        }


async def whole(answer: Answer, streams: list[EventStream]) -> dict[str, Any]:
    """The response in one piece; one choice a stream."""
    choices = await asyncio.gather(
        *(_whole_choice(answer, index, stream) for index, stream in enumerate(streams))
    )
    return {**answer.head(is_chunk=False), "choices": list(choices), "usage": answer.usage()}


async def _whole_choice(answer: Answer, index: int, stream: EventStream) -> dict[str, Any]:
    texts, reason = [], "stop"
    async for event in stream:
        texts.append(event.text)
        if isinstance(event, FinishEvent):
            reason = _FINISH_REASONS[event.reason]
        else:
            answer.num_output_tokens += 1
    text = "".join(texts)
    content = (
        {"message": {"role": "assistant", "content": text}}
        if answer.endpoint == "chat"
        else {"text": text}
    )
    return {"index": index, **content, "logprobs": None, "finish_reason": reason}


async def chunks(
    answer: Answer, streams: list[EventStream], *, include_usage: bool
) -> AsyncGenerator[str, None]:
    """The response as server-sent events, `[DONE]` last; a failure is an `error` event."""
    try:
        for index, stream in enumerate(streams):
            if answer.endpoint == "chat":
                yield _event(answer, index, {"role": "assistant", "content": ""}, None)
            async for event in stream:
                if event.text:
                    yield _event(answer, index, {"content": event.text}, None)
                if isinstance(event, TokenEvent):
                    answer.num_output_tokens += 1
                else:
                    yield _event(answer, index, {}, _FINISH_REASONS[event.reason])
        if include_usage:
            tail = {**answer.head(is_chunk=True), "choices": [], "usage": answer.usage()}
            yield f"data: {json.dumps(tail)}\n\n"
        yield "data: [DONE]\n\n"
    except Exception as error:  # headers are sent: the stream itself has to say what happened
        yield f"data: {json.dumps(error_body(str(error), kind='server_error'))}\n\n"
    finally:  # a client that left: its requests are cancelled now
        for stream in streams:
            await stream.aclose()


def error_body(message: str, *, kind: str, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def _event(answer: Answer, index: int, delta: dict[str, str], reason: str | None) -> str:
    content: dict[str, Any] = (
        {"delta": delta} if answer.endpoint == "chat" else {"text": delta.get("content", "")}
    )
    choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
    return f"data: {json.dumps({**answer.head(is_chunk=True), 'choices': [choice]})}\n\n"
