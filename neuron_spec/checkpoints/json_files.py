"""The JSON of a checkpoint, which may come from anyone: bounded, and with one meaning only.

Python's parser keeps the last of two equal keys, takes NaN for a number and builds whatever fits
into memory. Two programs can then read one file in two ways, which is where attacks begin; here
such a file is refused. `\\ud800` alone is no character: it could be neither printed nor written.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from neuron_spec.checkpoints.opening import open_regular
from neuron_spec.errors import CheckpointError, shown

MAX_JSON_BYTES = 4 << 20
MAX_INDEX_BYTES = 32 << 20
MAX_TOKENIZER_BYTES = 256 << 20
_MAX_DEPTH = 64
_MAX_DIGITS = 100
_MEND = "download or copy it again"


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON object from a checkpoint directory.

    Raises:
        CheckpointError: missing, not readable, too large, or not one unambiguous JSON object.
    """
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CheckpointError(f"not a checkpoint: no {path.name}", where=path.parent) from None
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=path) from None
    if len(content) > max_bytes:
        raise CheckpointError(
            "too large for a JSON file of its kind",
            where=path,
            found=f"more than {max_bytes:,} bytes",
            mend=_MEND,
        )
    return parse_object(content, path)


def parse_object(content: bytes, path: Path, what: str = "JSON") -> dict[str, Any]:
    """One unambiguous JSON object.

    Args:
        path: for the message.
        what: what the content is called there.

    Raises:
        CheckpointError: not UTF-8, not JSON, not an object, a key twice, a number that is none, or
            nested too deep.
    """
    try:
        data = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_number,
        )
        _check_depth(data)
        if b"\\u" in content:  # only an escape can name half a character in valid UTF-8
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise CheckpointError(f"not valid {what}: half a character", where=path) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not valid {what}: {error}", where=path, mend=_MEND) from None
    if not isinstance(data, dict):
        raise CheckpointError(f"not valid {what}: not an object", where=path, mend=_MEND)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} stands twice in one object")
    return table


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {shown(digits)} is too large")
    return number


def _check_depth(data: Any) -> None:
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        level = [child for node in level for child in _containers(node)]


def _containers(node: Any) -> list[Any]:
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [value for value in values if isinstance(value, (dict, list))]
