"""Log-probabilities in OpenAI's two forms: a list a token in chats, parallel lists in completions.

A token that is no whole character is written as OpenAI's completions do, `bytes:\\xe2\\x80`,
so that different tokens stay different.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuron_spec.engine.events import TokenEvent

TokenBytes = Callable[[int], bytes]


def token_text(raw: bytes) -> str:
    """A token as text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokens: Sequence[TokenEvent], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(token_id)
        return {"token": token_text(raw), "logprob": _finite(logprob), "bytes": list(raw)}

    content = []
    for event in tokens:
        if event.logprobs is not None:
            top = [entry(*pair) for pair in event.logprobs.top]
            content.append({**entry(event.token_id, event.logprobs.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenEvent], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; the chosen token is always among the top ones."""
    told = [(event, event.logprobs) for event in tokens if event.logprobs is not None]

    def text(token_id: int) -> str:
        return token_text(token_bytes(token_id))

    return {
        "tokens": [text(event.token_id) for event, _ in told],
        "token_logprobs": [_finite(logprobs.logprob) for _, logprobs in told],
        "top_logprobs": [
            {
                **{text(token): _finite(logprob) for token, logprob in logprobs.top},
                text(event.token_id): _finite(logprobs.logprob),
            }
            for event, logprobs in told
        ],
        "text_offset": [event.text_offset for event, _ in told],
    }


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI's stand-in for a token that cannot come is -9999."""
    return max(logprob, -9999.0)
