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


def read_workload(path: Path, *, limit: int | None = None) -> list[WorkloadRow]:
    """The rows of a JSONL file, at most `limit` of them.

    Raises:
        UserError: no such file, or a line in none of the known forms (line number given).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where=path, expected="a JSONL file") from None
    rows = list(_rows(path, text))[:limit]
    if not rows:
        raise UserError("no prompts in the file", where=path)
    return rows


def _rows(path: Path, text: str) -> Iterator[WorkloadRow]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = _row(json.loads(line))
        except ValueError:
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
