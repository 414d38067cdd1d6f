"""What a compiler prints, into a file: this process's own output and that of its children."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TextIO


@contextmanager
def output_into(log: Path) -> Iterator[None]:
    """Turn standard output and standard error into `log`, which is begun anew, for the block.

    neuronx-cc runs in processes of its own, which inherit the two descriptors. Who wants to reach
    the terminal meanwhile needs a descriptor of its own. Loggers that a library makes in the block
    keep its streams: these are of the two descriptors, and so come back with them.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        saved = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
        try:
            for descriptor, _ in saved:
                os.dup2(file.fileno(), descriptor)
            with redirect_stdout(_stream(1)) as out, redirect_stderr(_stream(2)) as err:
                try:
                    yield
                finally:
                    out.flush()
                    err.flush()
        finally:
            for descriptor, copy in saved:
                os.dup2(copy, descriptor)
                os.close(copy)


def _stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: PTH123, SIM115


def last_lines(path: Path, count: int, max_bytes: int = 64 << 10) -> list[str]:
    """The last lines of a text file that are not empty; none if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - max_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]
