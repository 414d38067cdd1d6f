"""One thread that owns the model; coroutines hand it requests and await their events."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass

from neuron_spec.engine.events import Event, FinishEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.errors import BackendError

logger = logging.getLogger(__name__)

Deliver = Callable[[Event | BaseException], None]


@dataclass(frozen=True)
class _Submission:
    request: Request
    deliver: Deliver
    accepted: Future[int]


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

    async def events(self, request: Request) -> AsyncIterator[Event]:
        """The events of one request; leaving early cancels it.

        Raises:
            RequestError: the request can never run on this artifact.
            BackendError: the backend failed while it ran.
        """
        events: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def deliver(event: Event | BaseException) -> None:
            here.call_soon_threadsafe(events.put_nowait, event)

        accepted: Future[int] = Future()
        self._inbox.put(lambda: self._submit(_Submission(request, deliver, accepted)))
        request_id = await asyncio.wrap_future(accepted)
        is_finished = False
        try:
            while not is_finished:
                event = await events.get()
                if isinstance(event, BaseException):
                    is_finished = True
                    raise event
                is_finished = isinstance(event, FinishEvent)
                yield event
        finally:
            if not is_finished:
                self._inbox.put(lambda: self._cancel(request_id))

    def _submit(self, submission: _Submission) -> None:
        try:
            request_id = self._loop.submit(submission.request)
        except Exception as error:
            submission.accepted.set_exception(error)
            return
        self._listeners[request_id] = submission.deliver
        submission.accepted.set_result(request_id)

    def _cancel(self, request_id: int) -> None:
        self._listeners.pop(request_id, None)
        self._loop.cancel(request_id)

    def _run(self) -> None:
        while True:
            # Wait only when there is nothing to decode.
            while self._loop.is_idle or not self._inbox.empty():
                task = self._inbox.get()
                if task is None:
                    self._fail_all(BackendError("the server is shutting down"))
                    return
                task()
            try:
                for event in self._loop.advance():
                    self._dispatch(event)
            except Exception as error:
                logger.exception("the backend failed; running requests are answered with an error")
                self._fail_all(error)

    def _dispatch(self, event: Event) -> None:
        listener = self._listeners.get(event.request_id)
        if listener is not None:
            listener(event)
        if isinstance(event, FinishEvent):
            self._listeners.pop(event.request_id, None)

    def _fail_all(self, error: Exception) -> None:
        self._loop.close()
        for listener in self._listeners.values():
            listener(error)
        self._listeners.clear()
