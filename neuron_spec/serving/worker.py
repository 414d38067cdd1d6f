"""One thread that owns the model; coroutines hand it requests and await their events."""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from neuron_spec.engine.events import FailEvent, FinishEvent, LoopEvent, TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.errors import BackendError, NeuronSpecError
from neuron_spec.serving.batches import EventBatches, Mailbox, Post

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Rounds in a row that may fail before the engine is taken for broken: it then says so in /health,
and tries on."""


@dataclass
class _Submission:
    """A request on its way; all but `is_open` belongs to the engine's thread."""

    request: Request
    mailbox: Mailbox
    request_id: int | None = None
    is_open: bool = True


class EngineWorker:
    """Runs a decode loop in its own thread.

    Every touch of the loop happens in that thread; the inbox carries functions to run there.
    Whoever waits for events gets an end: the request's own, an error, or the timeout, also where
    the thread dies or hangs.
    """

    def __init__(
        self, loop: DecodeLoop, *, observe: Callable[[FinishEvent], None] | None = None
    ) -> None:
        """`observe` is called in the engine's thread with the end of every request."""
        self._loop, self._observe = loop, observe
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._taken_in: dict[int, _Submission] = {}
        self._thread = threading.Thread(target=self._run, name="neuron-spec-engine", daemon=True)
        # Of the two below: nobody hands in what nobody will take out, and the count is exact.
        self._lock = threading.Lock()
        self._is_open, self._num_open = True, 0
        self._num_failures = 0

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

    @property
    def is_broken(self) -> bool:
        """Whether the last rounds all failed."""
        return self._num_failures >= MAX_FAILURES

    @property
    def num_waiting(self) -> int:
        """Requests without a slot, those that the engine has not looked at yet included."""
        return max(0, self._num_open - self._loop.num_running)

    @property
    def num_open(self) -> int:
        """Requests that were handed in and have not ended."""
        return self._num_open

    @property
    def num_running(self) -> int:
        """Requests in a slot."""
        return self._loop.num_running

    def events(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> EventBatches:
        """Hand in requests that run side by side; returns their events, each with the request's
        number. Whoever does not read to the end closes it.

        Raises:
            BackendError: the engine has stopped.
        """
        return EventBatches(self, requests, timeout_s)

    def hand_in(self, request: Request, mailbox: Mailbox) -> Callable[[], None]:
        """Queue a request whose events go to `mailbox`; returns what cancels it.

        Raises:
            BackendError: the engine has stopped.
        """
        submission = _Submission(request, mailbox)
        if not self._put(partial(self._submit, submission), num_new=1):
            raise BackendError("the engine has stopped")
        # The inbox keeps order: who leaves at once is cancelled after being taken in.
        return lambda: self._cancel_later(submission)

    def _cancel_later(self, submission: _Submission) -> None:
        self._put(partial(self._cancel, submission))

    def _put(self, task: Callable[[], None], *, num_new: int = 0) -> bool:
        with self._lock:
            if self._is_open:
                self._num_open += num_new
                self._inbox.put(task)
            return self._is_open

    def _end(self, submission: _Submission) -> None:
        with self._lock:
            self._num_open -= submission.is_open
            submission.is_open = False

    def _submit(self, submission: _Submission) -> None:
        try:
            submission.request_id = self._loop.submit(submission.request)
        except Exception as error:
            self._end(submission)
            post = Post()
            post.add(submission.mailbox, error)
            post.send()
        else:
            self._taken_in[submission.request_id] = submission

    def _cancel(self, submission: _Submission) -> None:
        self._end(submission)
        if submission.request_id is not None:
            self._taken_in.pop(submission.request_id, None)
            self._loop.cancel(submission.request_id)

    def _run(self) -> None:
        reason = "the engine's thread died"
        try:
            while self._take_in():
                self._advance()
            reason = "the server is shutting down"
        except BaseException:
            logger.critical("the engine's thread died", exc_info=True)
        finally:
            self._close(reason)

    def _advance(self) -> None:
        try:
            self._dispatch(self._loop.advance())
        except Exception as error:  # of the loop itself: a request's own failure is an event
            logger.exception("the engine failed; all requests are answered with an error")
            self._num_failures += 1
            self._fail_all(f"the engine failed: {error}")

    def _take_in(self) -> bool:
        """Do what the inbox holds; wait only when there is nothing to decode. False: stop."""
        while self._loop.is_idle or not self._inbox.empty():
            task = self._inbox.get()
            if task is None:
                return False
            task()
        return True

    def _dispatch(self, events: Sequence[LoopEvent]) -> None:
        by_request: defaultdict[int, list[LoopEvent]] = defaultdict(list)
        for event in events:
            by_request[event.request_id].append(event)
        post = Post()
        for request_id, own in by_request.items():
            self._note(own[-1])
            submission = self._taken_in.get(request_id)
            if submission is None:
                continue
            if not isinstance(own[-1], TokenEvent):
                self._end(self._taken_in.pop(request_id))
            post.add(submission.mailbox, own)
        post.send()

    def _note(self, event: LoopEvent) -> None:
        if isinstance(event, FailEvent):
            if not isinstance(event.error, NeuronSpecError):
                logger.error("the backend failed", exc_info=event.error)
                self._num_failures += 1
            return
        self._num_failures = 0
        if isinstance(event, FinishEvent) and self._observe:
            self._observe(event)

    def _close(self, reason: str) -> None:
        with self._lock:
            self._is_open = False
        with suppress(Exception):
            while not self._inbox.empty():
                task = self._inbox.get()
                if task is not None:
                    task()
        self._fail_all(reason)

    def _fail_all(self, reason: str) -> None:
        post = Post()
        for submission in self._taken_in.values():
            self._end(submission)
            # One each: a raised error keeps its raiser's traceback.
            post.add(submission.mailbox, BackendError(reason))
        post.send()
        self._taken_in.clear()
        self._loop.close()
