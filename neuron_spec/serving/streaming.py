"""Events -> OpenAI responses, whole or as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from neuron_spec.engine.events import Event, FinishEvent, TokenEvent
from neuron_spec.errors import RequestError
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.serving.errors import error_body
from neuron_spec.serving.logprobs import TokenBytes, chat_logprobs, completion_logprobs

Endpoint = Literal["completion", "chat"]
Batch = tuple[int, Sequence[Event]]
"""A choice's number and what one round brought it."""
_FINISH_REASONS = {"stop": "stop", "length": "length", "cancelled": "stop"}
_LOGPROBS = {"chat": chat_logprobs, "completion": completion_logprobs}


class Batches(Protocol):
    """Batches of all choices as they come."""

    def __aiter__(self) -> AsyncIterator[Batch]: ...

    async def __anext__(self) -> Batch: ...

    async def aclose(self) -> None:
        """Cancel what still runs."""


@dataclass
class Answer:
    """One response: what all its chunks share, and what has been counted so far.

    Attributes:
        identifier: of this response alone.
        num_prompt_tokens: of all prompts, each counted once however many choices it has.
        choices_per_prompt: OpenAI's `n`.
        echoes: text before every choice, the prompt where `echo` asks for it.
        token_bytes: how tokens are spelt where log-probabilities are wanted; None where not.
        tells_acceptance: whether usage has the counts of drafted and accepted tokens.
        tells_running_usage: whether every chunk has the usage so far.
        tells_tokens: whether choices list their tokens with their origins.
    """

    endpoint: Endpoint
    model: str
    identifier: str
    num_prompt_tokens: int
    echoes: Sequence[str] = ("",)
    token_bytes: TokenBytes | None = None
    tells_acceptance: bool = False
    tells_running_usage: bool = False
    tells_tokens: bool = False
    choices_per_prompt: int = 1
    created: int = field(default_factory=lambda: int(time.time()))
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    acceptance: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    reasons: dict[int, str] = field(default_factory=dict)
    ttft_s: float | None = None

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

    @cached_property
    def chunk_head(self) -> str:
        """What all chunks begin with, as JSON without its closing brace."""
        return json.dumps(self.head(is_chunk=True))[:-1]

    def take(self, index: int, events: Sequence[Event]) -> None:
        """Count a batch."""
        for event in events:
            if isinstance(event, TokenEvent):
                self.num_output_tokens += 1
            else:
                self.acceptance.add(event.acceptance)
                if index % self.choices_per_prompt == 0:
                    self.num_cached_tokens += event.num_cached_tokens
                self.reasons[index] = _FINISH_REASONS[event.reason]
                if event.timing.ttft_s is not None:
                    self.ttft_s = min(self.ttft_s or event.timing.ttft_s, event.timing.ttft_s)

    def usage(self) -> dict[str, Any]:
        """Token counts, and on request what became of the drafted tokens."""
        counts: dict[str, Any] = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }
        if self.tells_acceptance:
            counts["acceptance"] = self.acceptance.as_dict()
        return counts

    def choice(self, index: int, content: dict[str, Any], tokens: Sequence[TokenEvent]) -> Any:
        """A choice, or a chunk's part of it, that ends as far as is known."""
        logprobs = None
        if self.token_bytes is not None and tokens:
            logprobs = _LOGPROBS[self.endpoint](tokens, self.token_bytes)
        listed = {"tokens": [_token(event) for event in tokens]} if self.tells_tokens else {}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": None, **listed}


async def whole(answer: Answer, batches: Batches) -> dict[str, Any]:
    """The response in one piece."""
    gathered: list[list[Event]] = [[] for _ in answer.echoes]
    async for index, events in batches:
        answer.take(index, events)
        gathered[index] += events
    choices = []
    for index, events in enumerate(gathered):
        text = answer.echoes[index] + "".join(event.text for event in events)
        is_chat = answer.endpoint == "chat"
        content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        choice = answer.choice(index, content, tokens)
        choices.append({**choice, "finish_reason": answer.reasons[index]})
    return {**answer.head(is_chunk=False), "choices": choices, "usage": answer.usage()}


async def chunks(
    answer: Answer, first: Batch, batches: Batches, *, include_usage: bool
) -> AsyncGenerator[str, None]:
    """The response as server-sent events, `[DONE]` last; a failure is an `error` event.

    What one round brought goes out in one piece, a server-sent event a token.
    """
    try:
        yield "".join(_opening(answer)) + _batch(answer, *first)
        async for batch in batches:
            yield _batch(answer, *batch)
        if include_usage:
            tail = {**answer.head(is_chunk=True), "choices": [], "usage": answer.usage()}
            yield _sse(tail)
        yield "data: [DONE]\n\n"
    except Exception as error:  # headers are sent: the stream itself has to say what happened
        kind = "invalid_request_error" if isinstance(error, RequestError) else "server_error"
        yield _sse(error_body(str(error), kind=kind))
    finally:  # a client that left: its requests are cancelled now
        await batches.aclose()


def _opening(answer: Answer) -> Iterator[str]:
    for index, echo in enumerate(answer.echoes):
        if answer.endpoint == "chat":
            yield _chunk(answer, index, {"delta": {"role": "assistant", "content": ""}})
        elif echo:
            yield _chunk(answer, index, {"text": echo})


def _batch(answer: Answer, index: int, events: Sequence[Event]) -> str:
    parts = []
    for event in events:
        answer.take(index, [event])
        tokens = [event] if isinstance(event, TokenEvent) else []
        is_wanted = answer.tells_tokens or answer.token_bytes is not None
        if event.text or (tokens and is_wanted):
            parts.append(_chunk(answer, index, _delta(answer, event.text), tokens))
        if isinstance(event, FinishEvent):
            reason = answer.reasons[index]
            parts.append(_chunk(answer, index, _delta(answer, ""), finish_reason=reason))
    return "".join(parts)


def _token(event: TokenEvent) -> dict[str, Any]:
    return {
        "id": event.token_id,
        "text": event.text,
        "origin": event.origin,
        "step": event.step,
        "num_positions": event.num_positions,
    }


def _delta(answer: Answer, text: str) -> dict[str, Any]:
    if answer.endpoint == "completion":
        return {"text": text}
    return {"delta": {"content": text} if text else {}}


def _chunk(
    answer: Answer,
    index: int,
    content: dict[str, Any],
    tokens: Sequence[TokenEvent] = (),
    finish_reason: str | None = None,
) -> str:
    choice = {**answer.choice(index, content, tokens), "finish_reason": finish_reason}
    usage = f', "usage": {json.dumps(answer.usage())}' if answer.tells_running_usage else ""
    return f'data: {answer.chunk_head}, "choices": [{json.dumps(choice)}]{usage}}}\n\n'


def _sse(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
