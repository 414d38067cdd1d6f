"""JSONL that SageMaker trains an EAGLE head on: which of three forms it has, and what breaks it.

The API names the forms and no schema (CreateOptimizationJob, ModelSpeculativeDecodingConfig:
"ShareGPT, OpenAI Completions or OpenAI Chat Completions"). The fields are those of the forms' own
documents: `conversations` of `from` and `value` (ShareGPT); `messages` of `role` and `content`
(OpenAI chat); `prompt`, with the answer as `completion` or in `choices` (OpenAI completions).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.errors import UserError, shown

_MAX_FAULTS = 5
_MAX_ROW_BYTES = 1 << 26  # a longer line is no row of text
_SPEAKERS = ("human", "gpt", "user", "assistant", "system", "tool", "function", "observation")
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ANSWERERS = ("gpt", "assistant")


@dataclass(frozen=True)
class TrainingData:
    """A file that passed.

    Attributes:
        form: sharegpt, openai-chat or openai-completions.
        num_rows: rows in it.
        num_unanswered: rows without an answer, which can teach a head nothing of the target's text.
    """

    form: str
    num_rows: int
    num_unanswered: int


def check_training_data(path: Path) -> TrainingData:
    """Read a JSONL file row by row; all rows must have one of the three forms, and the same.

    Raises:
        UserError: not readable, empty, or with faulty rows, the first of which are listed.
    """
    forms: dict[str, int] = {}
    faults: list[str] = []
    num_rows = num_unanswered = 0
    for number, line in _lines(path):
        try:
            form, answered = _read_row(line)
        except ValueError as error:
            faults.append(f"line {number}: {error}")
            if len(faults) == _MAX_FAULTS:
                break
            continue
        forms.setdefault(form, number)
        num_rows += 1
        num_unanswered += not answered
    if faults:
        raise _refused(path, "rows that are no training data", *faults)
    if len(forms) > 1:
        firsts = [f"{form} from line {number}" for form, number in forms.items()]
        raise _refused(path, "rows of several forms", *firsts)
    if not forms:
        raise _refused(path, "holds no rows")
    return TrainingData(next(iter(forms)), num_rows, num_unanswered)


def _refused(path: Path, problem: str, *details: str) -> UserError:
    return UserError(
        "\n  ".join([problem, *details]),
        where=path,
        expected="one JSON object a line: ShareGPT, OpenAI chat completions or OpenAI completions",
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, line) of all lines that are not blank."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_MAX_ROW_BYTES):
                number += 1
                if len(line) == _MAX_ROW_BYTES:
                    raise _refused(path, f"line {number} is longer than 64 MiB")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=path) from None


def _read_row(line: bytes) -> tuple[str, bool]:
    """(form, whether it has an answer).

    Raises:
        ValueError: the row has none of the forms; the message says why.
    """
    try:
        row = json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, found {shown(row)}")
    matching = [key for key in _FORMS if key in row]
    if len(matching) != 1:
        keys = ", ".join(_FORMS)
        raise ValueError(f"expected one of the keys {keys}; found {shown(sorted(row))}")
    form, read = _FORMS[matching[0]]
    return form, read(row)


def _sharegpt(row: dict[str, Any]) -> bool:
    return _turns(row, "conversations", ("from", "value"), _SPEAKERS)


def _chat(row: dict[str, Any]) -> bool:
    answered = _turns(row, "messages", ("role", "content"), _ROLES)
    return answered or "choices" in row


def _completions(row: dict[str, Any]) -> bool:
    _text(row, "prompt", "prompt")
    if "completion" in row:
        _text(row, "completion", "completion")
    return "completion" in row or "choices" in row


def _turns(
    row: dict[str, Any], key: str, fields: tuple[str, str], speakers: tuple[str, ...]
) -> bool:
    """Check the turns of a dialogue; whether one of them is the model's."""
    turns, (speaker, text) = row[key], fields
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{key}: expected a list with turns, found {shown(turns)}")
    for index, turn in enumerate(turns):
        where = f"{key}[{index}]"
        if not isinstance(turn, dict):
            raise ValueError(f"{where}: expected an object, found {shown(turn)}")
        if turn.get(speaker) not in speakers:
            found = shown(turn.get(speaker))
            raise ValueError(f"{where}.{speaker}: expected {', '.join(speakers)}; found {found}")
        _text(turn, text, f"{where}.{text}")
    return any(turn[speaker] in _ANSWERERS for turn in turns)


def _text(holder: dict[str, Any], key: str, where: str) -> None:
    value = holder.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: expected text, found {shown(value)}")


_FORMS: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "conversations": ("sharegpt", _sharegpt),
    "messages": ("openai-chat", _chat),
    "prompt": ("openai-completions", _completions),
}
