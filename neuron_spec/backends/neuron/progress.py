"""How far a build is: finished files counted, since NxDI tells nothing and its log may change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neuron_spec.files import Progress

GRAPHS, SHARDS = "graphs", "weights by rank"
COUNTED = (GRAPHS, SHARDS)  # how labels end; all else is counted in bytes
_SECONDS = 1.0  # between two looks; compiling one graph takes minutes


@dataclass(frozen=True)
class Counted:
    """Files that appear one by one.

    Attributes:
        label: what they are, for a progress bar.
        pattern: a glob below `folder`, which need not exist yet.
        total: how many there will be; nothing is told where it is 0.
    """

    label: str
    folder: Path
    pattern: str
    total: int

    @property
    def done(self) -> int:
        """How many there are."""
        try:
            return sum(1 for _ in self.folder.glob(self.pattern))
        except OSError:  # a folder that is just being removed
            return 0


@contextmanager
def watched(progress: Progress, *kinds: Counted) -> Iterator[None]:
    """Tell `progress` of finished files while the block runs, and once more at its end."""
    is_over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(progress, kinds, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _watch(progress: Progress, kinds: tuple[Counted, ...], is_over: threading.Event) -> None:
    told: dict[str, int] = {}
    goes_on = True
    while goes_on:
        goes_on = not is_over.wait(_SECONDS if told else 0)
        for kind in kinds:
            done = kind.done
            if kind.total and told.get(kind.label) != done:
                told[kind.label] = done
                progress(kind.label, done, kind.total)
        told.setdefault("", 0)  # from now on it waits
