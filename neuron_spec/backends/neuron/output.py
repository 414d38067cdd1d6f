"""What a compiler prints, into a file: this process's own output and that of its children."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path


@contextmanager
def output_into(log: Path) -> Iterator[None]:
    """Turn standard output and standard error into `log`, which is begun anew, for the block.

    neuronx-cc runs in processes of its own, which inherit the two descriptors. Who wants to reach
    the terminal meanwhile needs a descriptor of its own.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", buffering=1) as file:
        sys.stdout.flush()
        sys.stderr.flush()
        saved = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
        try:
            for descriptor, _ in saved:
                os.dup2(file.fileno(), descriptor)
            with redirect_stdout(file), redirect_stderr(file):
                yield
        finally:
            for descriptor, copy in saved:
                os.dup2(copy, descriptor)
                os.close(copy)


def last_lines(path: Path, count: int, max_bytes: int = 64 << 10) -> list[str]:
    """The last lines of a text file that are not empty; none if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - max_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]
