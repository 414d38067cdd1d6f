"""Recorded passes without a GPU."""

from __future__ import annotations

from collections.abc import Callable


class Rerun:
    """A `Record` that runs again what it was given, over the same memory, as a CUDA graph does."""

    def __init__(self) -> None:
        self.num_recorded = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.num_recorded += 1
        run()
        return run
