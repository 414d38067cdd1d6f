"""Prompts from JSONL files, in the forms people have them.

A line is a JSON string, or an object with `prompt` (text or token ids), `messages` (a conversation)
or `turns` (Spec-Bench and MT-Bench; the first turn is asked as a user's message).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.errors import UserError


@dataclass(frozen=True)
class WorkloadRow:
    """One prompt with the kind of work it stands for."""

    prompt: Prompt
    category: str


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
    """The rows of a JSONL file, at most `limit` of them.

    Raises:
        UserError: no such file, or a line in none of the known forms (line number given).
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where=path, expected="a JSONL file") from None
    rows = list(_rows(path, text))[:limit]
    if not rows:
        raise UserError("no prompts in the file", where=path)
    return rows


def _rows(path: Path, text: str) -> Iterator[WorkloadRow]:
    # Not `splitlines`: a JSON string may hold U+2028 and other ends of line as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _row(json.loads(line))
        except (ValueError, RecursionError):
            row = None
        if row is None:
            raise UserError(
                "not a prompt",
                where=f"{path}:{number}",
                found=line[:80],
                expected='a JSON string, or an object with "prompt", "messages" or "turns"',
            )
        yield row


def _row(data: Any) -> WorkloadRow | None:
    if isinstance(data, str):
        return WorkloadRow(data, "prompt")
    if not isinstance(data, dict):
        return None
    category = str(data.get("category", "prompt"))
    if isinstance(prompt := data.get("prompt"), (str, list)):
        return WorkloadRow(prompt, category)
    if isinstance(messages := data.get("messages"), list):
        return WorkloadRow(messages, category)
    if isinstance(turns := data.get("turns"), list) and turns and isinstance(turns[0], str):
        return WorkloadRow([{"role": "user", "content": turns[0]}], category)
    return None
