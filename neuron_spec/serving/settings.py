"""What an operator sets: keys, limits and times."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from neuron_spec.errors import UserError

API_KEYS_VARIABLE = "NEURON_SPEC_API_KEYS"


@dataclass(frozen=True)
class ServerSettings:
    """How a server treats its clients.

    Attributes:
        api_keys: any of them opens /v1; none means that no key is asked for.
        max_body_bytes: of a request.
        max_waiting: choices that may wait for a slot; more are answered with 429.
        request_timeout_s: from a request's arrival to its answer's end, waiting included.
        drain_s: how long running requests may go on after SIGTERM.
    """

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 4 << 20
    max_waiting: int = 256
    request_timeout_s: float = 600.0
    drain_s: float = 30.0

    def __repr__(self) -> str:
        """Without the keys, which must reach no log."""
        return f"ServerSettings({len(self.api_keys)} API keys, max_waiting={self.max_waiting})"


def read_api_keys(path: Path | None) -> tuple[str, ...]:
    """Keys of a file, one a line (`#` begins a comment line), or else of `NEURON_SPEC_API_KEYS`,
    separated by commas.

    Raises:
        UserError: the file cannot be read, or a source that is given holds no key.
    """
    if path is not None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                "the API keys cannot be read",
                where=path,
                expected="a UTF-8 text file, one key a line",
            ) from error
        return _keys([line for line in lines if not line.lstrip().startswith("#")], path)
    text = os.environ.get(API_KEYS_VARIABLE)
    return () if text is None else _keys(text.split(","), API_KEYS_VARIABLE)


def _keys(parts: list[str], where: str | Path) -> tuple[str, ...]:
    keys = tuple(part.strip() for part in parts if part.strip())
    if not keys:
        raise UserError("no API key in it", where=where, mend="add a key, or leave the option out")
    return keys
