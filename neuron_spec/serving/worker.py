"""One thread that owns the model; coroutines hand it requests and await their events."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass

from neuron_spec.engine.events import Event, FinishEvent, TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.errors import BackendError

logger = logging.getLogger(__name__)

Deliver = Callable[[Event | BaseException], None]


@dataclass
class _Submission:
    """A request on its way; `request_id` belongs to the engine's thread."""

    request: Request
    deliver: Deliver
    request_id: int | None = None


class EngineWorker:
    """Runs a decode loop in its own thread.

    Every touch of the loop happens in that thread; the inbox carries functions to run there.
    """

    def __init__(self, loop: DecodeLoop) -> None:
        self._loop = loop
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[int, Deliver] = {}
        self._thread = threading.Thread(target=self._run, name="neuron-spec-engine", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel what runs and wait for the thread's end."""
        self._inbox.put(None)
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether requests are served."""
        return self._thread.is_alive()

    async def events(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of one request; leaving early cancels it.

        Raises:
            RequestError: the request can never run on this artifact.
            BackendError: the backend failed while it ran, or the server is stopping.
        """
        if not self.is_alive:
            raise BackendError("the engine has stopped")
        events: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def deliver(event: Event | BaseException) -> None:
            with suppress(RuntimeError):  # the caller's event loop has ended: nobody listens
                here.call_soon_threadsafe(events.put_nowait, event)

        submission = _Submission(request, deliver)
        self._inbox.put(lambda: self._submit(submission))
        is_finished = False
        try:
            while not is_finished:
                event = await events.get()
                is_finished = not isinstance(event, TokenEvent)
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            # The inbox keeps order: a caller who leaves at once is cancelled after being taken in.
            if not is_finished:
                self._inbox.put(lambda: self._cancel(submission))

    def _submit(self, submission: _Submission) -> None:
        try:
            submission.request_id = self._loop.submit(submission.request)
        except Exception as error:
            submission.deliver(error)
        else:
            self._listeners[submission.request_id] = submission.deliver

    def _cancel(self, submission: _Submission) -> None:
        if submission.request_id is not None:
            self._listeners.pop(submission.request_id, None)
            self._loop.cancel(submission.request_id)

    def _run(self) -> None:
        is_running = True
        while is_running:
            try:
                is_running = self._take_in()
                if is_running:
                    for event in self._loop.advance():
                        self._dispatch(event)
            except Exception as error:
                logger.exception("the backend failed; running requests are answered with an error")
                self._fail_all(f"the backend failed: {error}")
        self._fail_all("the server is shutting down")

    def _take_in(self) -> bool:
        """Do what the inbox holds; wait only when there is nothing to decode. False: stop."""
        while self._loop.is_idle or not self._inbox.empty():
            task = self._inbox.get()
            if task is None:
                return False
            task()
        return True

    def _dispatch(self, event: Event) -> None:
        listener = self._listeners.get(event.request_id)
        if listener is not None:
            listener(event)
        if isinstance(event, FinishEvent):
            self._listeners.pop(event.request_id, None)

    def _fail_all(self, reason: str) -> None:
        for listener in self._listeners.values():
            listener(BackendError(reason))  # one each: a raised error keeps its raiser's traceback
        self._listeners.clear()
        self._loop.close()
