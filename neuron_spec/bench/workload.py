"""Prompts from files, in the forms people have them.

A file is JSONL, one JSON array of rows (as ShareGPT is published), or `.txt` with a prompt a line.
A row is a JSON string, or an object with

    prompt          text or token ids (OpenAI completions)
    messages        a conversation (OpenAI chat completions)
    turns           Spec-Bench and MT-Bench; the first turn is asked as a user's message
    conversations   ShareGPT; the turns up to the first answer, which is the reference
    body, request   one of these inside: OpenAI batch files, requests captured at an endpoint

beside it `category` (the kind of work) and `reference`, `references` or `answer` (for exact match).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.errors import UserError

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
          "assistant": "assistant", "bing": "assistant", "system": "system"}  # fmt: skip


@dataclass(frozen=True)
class WorkloadRow:
    """One prompt with the kind of work it stands for.

    Attributes:
        references: right answers, where the file has them.
    """

    prompt: Prompt
    category: str
    references: tuple[str, ...] = ()


def workload_digest(rows: Sequence[WorkloadRow]) -> str:
    """SHA-256 of the prompts in their order: two runs are comparable only on the same ones."""
    content = [[row.prompt, row.category] for row in rows]
    return hashlib.sha256(json.dumps(content, default=list).encode()).hexdigest()


# One prompt a kind of work, for a first look; in no training or evaluation data of the demo head.
BUILT_IN = tuple(
    WorkloadRow([{"role": "user", "content": text}], category)
    for category, text in {
        "code": "Write a Python function that returns the largest even number in a list of "
        "integers, or None if there is none. Include a docstring.",
        "extraction": "Extract every person and city from this text as a bulleted list.\n\nText: "
        "Maria Lopez flew from Lisbon to Toronto on Monday to meet Ahmed Khan. They drove to "
        "Ottawa, where Chloe Martin had booked a room.",
        "chat": "I have a free weekend and feel tired. What could I do to relax?",
    }.items()
)


def read_workload(path: Path, *, limit: int | None = None) -> list[WorkloadRow]:
    """The rows of a file, at most `limit` of them.

    Raises:
        UserError: no such file, or a row in none of the known forms (its place is given).
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where=path, expected="a JSONL file") from None
    rows = []
    for place, data in _parts(path, text):
        row = _row(data)
        if row is None:
            raise UserError(
                "not a prompt",
                where=place,
                found=_quoted(data),
                expected='a JSON string, or an object with "prompt", "messages", "turns" or '
                '"conversations"',
            )
        rows.append(row)
        if len(rows) == limit:
            break
    if not rows:
        raise UserError("no prompts in the file", where=path)
    return rows


class _Unread(str):
    """A line that is no JSON, kept for the message."""


def _parts(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """(where, data) of every row."""
    # Not `splitlines`: a JSON string may hold U+2028 and other ends of line as they are.
    lines = [(f"{path}:{n}", line) for n, line in enumerate(text.split("\n"), start=1)]
    filled = [(place, line) for place, line in lines if line.strip()]
    if path.suffix == ".txt":
        yield from ((place, line.rstrip("\r")) for place, line in filled)
    elif (array := _array(text)) is not None:
        yield from ((f"{path}: row {n}", data) for n, data in enumerate(array, start=1))
    else:
        yield from ((place, _parsed(line)) for place, line in filled)


def _array(text: str) -> list[Any] | None:
    """The rows of a file that is one JSON array of strings or objects."""
    if not text.lstrip().startswith("["):
        return None
    data = _parsed(text)
    is_rows = isinstance(data, list) and all(isinstance(row, (str, dict)) for row in data)
    return data if is_rows else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _Unread(text)


def _quoted(data: Any) -> str:
    text = data if isinstance(data, _Unread) else json.dumps(data, ensure_ascii=False)
    return text[:80]


def _row(data: Any) -> WorkloadRow | None:
    if isinstance(data, _Unread):
        return None
    if isinstance(data, str):
        return WorkloadRow(data, "prompt")
    if not isinstance(data, dict):
        return None
    for wrapper in ("body", "request"):
        if isinstance(inner := data.get(wrapper), dict):
            return _row({**data, wrapper: None, **inner})
    category, references = str(data.get("category", "prompt")), _references(data)
    if isinstance(prompt := data.get("prompt"), (str, list)):
        return WorkloadRow(prompt, category, references)
    if isinstance(messages := data.get("messages"), list):
        return WorkloadRow(messages, category, references)
    if isinstance(turns := data.get("turns"), list) and turns and isinstance(turns[0], str):
        return WorkloadRow([{"role": "user", "content": turns[0]}], category, references)
    if isinstance(turns := data.get("conversations"), list):
        return _sharegpt(turns, category)
    return None


def _sharegpt(turns: list[Any], category: str) -> WorkloadRow | None:
    messages: list[dict[str, str]] = []
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            return None
        role = _ROLES.get(str(turn.get("from")).lower())
        if role is None:
            return None
        if role == "assistant":
            return WorkloadRow(messages, category, (turn["value"],)) if messages else None
        messages.append({"role": role, "content": turn["value"]})
    return WorkloadRow(messages, category) if messages else None


def _references(data: dict[str, Any]) -> tuple[str, ...]:
    for name in ("references", "reference", "answer"):
        value = data.get(name)
        if isinstance(value, (str, int, float)):
            return (str(value),)
        if isinstance(value, list) and value:
            return tuple(map(str, value))
    return ()
