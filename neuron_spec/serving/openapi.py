"""What `/docs` and `/openapi.json` say of the answers, beside what FastAPI reads off the routes."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": _TEXT_OR_NULL,
                "code": _TEXT_OR_NULL,
            },
        }
    },
}
_ANSWER: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": _TEXT,
        "object": {"enum": ["text_completion", "chat.completion"]},
        "created": {"type": "integer"},
        "model": _TEXT,
        "choices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["index", "finish_reason", "logprobs"],
                "properties": {
                    "index": {"type": "integer"},
                    "finish_reason": {"enum": ["stop", "length"]},
                },
            },
        },
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
        },
    },
}


def _described(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": description,
        "content": {kind: {"schema": schema} for kind, schema in content.items()},
    }


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": _described("What was asked for and cannot be done.", {"application/json": _ERROR}),
    "5XX": _described("What went wrong here.", {"application/json": _ERROR}),
}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: _described(
        "The answer, or with `stream` its chunks as server-sent events.",
        {"application/json": _ANSWER, "text/event-stream": _TEXT},
    ),
    **ERRORS,
}
