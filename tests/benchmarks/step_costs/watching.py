"""Time spent within the models' own calls, told from outside."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from neuron_spec.backends.reference.models import EagleHead, Target

MODEL_CALLS = (
    (Target, "hidden"),
    (Target, "logits"),
    (Target, "best"),
    (EagleHead, "forward"),
    (EagleHead, "logits"),
    (EagleHead, "best"),
)
"""Forward passes and LM heads, which find the likeliest ids where nothing else is asked for."""


class Watch:
    """Seconds within watched calls; of nested ones the outermost counts."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_inside = False

    def reset(self) -> None:
        """Begin anew."""
        self.seconds = 0.0

    def over(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, watched."""

        @functools.wraps(call)
        def watched(*args: Any, **options: Any) -> Any:
            if self._is_inside:
                return call(*args, **options)
            self._is_inside = True
            begun = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                self.seconds += time.perf_counter() - begun
                self._is_inside = False

        return watched


@contextmanager
def watching(calls: tuple[tuple[type, str], ...]) -> Iterator[Watch]:
    """A watch over methods; what is opened within keeps them."""
    watch = Watch()
    with ExitStack() as stack:
        for owner, name in calls:
            stack.enter_context(mock.patch.object(owner, name, watch.over(getattr(owner, name))))
        yield watch
