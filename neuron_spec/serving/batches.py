"""What the engine's thread tells, for a reader in an event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from neuron_spec.engine.events import Event, FailEvent, FinishEvent, LoopEvent
from neuron_spec.engine.request import Request
from neuron_spec.errors import BackendError, NeuronSpecError
from neuron_spec.serving.errors import UnavailableError
from neuron_spec.serving.streaming import Batch

Told = Sequence[LoopEvent] | Exception
"""What one round brought a request, or why it ended."""


@dataclass(frozen=True)
class Mailbox:
    """Where a request's events go: `put` is called in the event loop `home`."""

    home: asyncio.AbstractEventLoop
    put: Callable[[Told], None]


class Post:
    """Collects what goes to mailboxes and hands it over with one wake-up of each event loop, since
    every one of them costs the engine's thread and the loop a turn with the interpreter."""

    def __init__(self) -> None:
        self._letters: defaultdict[asyncio.AbstractEventLoop, list[Callable[[], None]]]
        self._letters = defaultdict(list)

    def add(self, mailbox: Mailbox, told: Told) -> None:
        """To be sent."""
        self._letters[mailbox.home].append(partial(mailbox.put, told))

    def send(self) -> None:
        """Everything, in the order it was added."""
        for home, letters in self._letters.items():
            with suppress(RuntimeError):  # that event loop has ended: nobody listens
                home.call_soon_threadsafe(_call_all, letters)


def _call_all(letters: Sequence[Callable[[], None]]) -> None:
    for letter in letters:
        letter()


class HandsIn(Protocol):
    """The engine's thread, as a reader knows it."""

    def hand_in(self, request: Request, mailbox: Mailbox) -> Callable[[], None]:
        """Queue a request; returns what cancels it."""


class EventBatches:
    """What happens to requests that run side by side, for one reader in one event loop.

    Reading raises `RequestError` for a request that can never run, `BackendError` where the backend
    failed or the server is stopping, and `UnavailableError` when the time is over. All of them, and
    a reader that is cancelled, cancel what still runs.
    """

    def __init__(
        self, worker: HandsIn, requests: Sequence[Request], timeout_s: float | None
    ) -> None:
        self._arrivals: asyncio.Queue[tuple[int, Told]] = asyncio.Queue()
        home = asyncio.get_running_loop()
        self._cancels: dict[int, Callable[[], None]] = {}
        self._alarm = None
        try:
            for index, request in enumerate(requests):
                mailbox = Mailbox(home, partial(self._arrive, index))
                self._cancels[index] = worker.hand_in(request, mailbox)
        except BaseException:
            self._cancel_all()
            raise
        if timeout_s is not None:
            late = (0, _out_of_time(timeout_s))
            self._alarm = home.call_later(timeout_s, self._arrivals.put_nowait, late)

    def __aiter__(self) -> EventBatches:
        return self

    async def __anext__(self) -> Batch:
        """The next batch of any of the requests."""
        if not self._cancels:
            self._cancel_all()
            raise StopAsyncIteration
        try:
            index, events = await self._arrivals.get()
            last = _checked(events)
        except BaseException:
            self._cancel_all()
            raise
        if isinstance(last, FinishEvent):
            self._cancels.pop(index)
        return index, cast(Sequence[Event], events)

    async def aclose(self) -> None:
        """Cancel what still runs."""
        self._cancel_all()

    def _arrive(self, index: int, told: Told) -> None:
        self._arrivals.put_nowait((index, told))

    def _cancel_all(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        for cancel in self._cancels.values():
            cancel()
        self._cancels.clear()


def _checked(events: Told) -> LoopEvent:
    """The last of a batch; failures are raised."""
    if isinstance(events, Exception):
        raise events
    last = events[-1]
    if isinstance(last, FailEvent):
        if isinstance(last.error, NeuronSpecError):
            raise last.error
        raise BackendError(f"the backend failed: {last.error}") from last.error
    return last


def _out_of_time(timeout_s: float) -> UnavailableError:
    return UnavailableError(f"no answer within {timeout_s:g} s (--request-timeout)", status=504)
