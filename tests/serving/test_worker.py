"""The engine's thread: many callers, callers that leave, backends that fail, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from conftest import WordTokenizer

from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import FinishEvent, TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.errors import BackendError, RequestError
from neuron_spec.serving.errors import UnavailableError
from neuron_spec.serving.worker import MAX_FAILURES, EngineWorker

REPLIES = {(number,): (number * 10, number * 10 + 1, number * 10 + 2) for number in range(3, 30)}
# No request ends by itself in a test's time.
LIMITS = Limits(batch_size=2, max_prompt_tokens=8, max_total_tokens=10**9, num_draft_tokens=4)
T = TypeVar("T")


class SlowSpeculator(ScriptedSpeculator):
    """Steps only while `go` is set, fails while `is_broken`."""

    def __init__(self) -> None:
        super().__init__(REPLIES, accepted=[1], limits=LIMITS)
        self.go, self.in_step = threading.Event(), threading.Event()
        self.go.set()
        self.is_broken = False

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        self._wait()
        return super().prefill(slot, prompt_ids, decoding)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        self._wait()
        return super().step(num_draft_tokens)

    def _wait(self) -> None:
        self.in_step.set()
        assert self.go.wait(10)
        if self.is_broken:
            raise RuntimeError("the device is gone")

    @property
    def num_taken(self) -> int:
        return len(self._running)


@contextmanager
def running(speculator: SlowSpeculator) -> Iterator[EngineWorker]:
    worker = EngineWorker(
        DecodeLoop(speculator, WordTokenizer().decode, draft_length=DraftLength.constant(4))
    )
    worker.start()
    try:
        yield worker
    finally:
        speculator.go.set()
        worker.stop()
        assert not worker.is_alive


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 20))


async def collect(worker: EngineWorker, *prompt: int, max_new_tokens: int | None = 3) -> list[int]:
    request = Request(prompt, max_new_tokens=max_new_tokens)
    batches = [batch async for batch in worker.events([request])]
    assert {index for index, _ in batches} == {0}
    events = [event for _, events in batches for event in events]
    assert isinstance(events[-1], FinishEvent)
    return [event.token_id for event in events if isinstance(event, TokenEvent)]


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_many_callers_at_once_get_their_own_events() -> None:
    async def main(worker: EngineWorker) -> list[list[int]]:
        return await asyncio.gather(*(collect(worker, number) for number in range(3, 30)))

    with running(SlowSpeculator()) as worker:
        assert run(main(worker)) == [list(REPLIES[(number,)]) for number in range(3, 30)]


def test_a_request_that_can_never_run() -> None:
    with running(SlowSpeculator()) as worker:
        with pytest.raises(RequestError) as caught:
            run(collect(worker))
        assert caught.value.field == "prompt"
        assert run(collect(worker, 3)) == [30, 31, 32]


def test_leaving_early_frees_the_slot() -> None:
    async def main(worker: EngineWorker, speculator: SlowSpeculator) -> None:
        for _ in range(4):  # more often than there are slots
            events = worker.events([Request((3,))])
            await anext(aiter(events))
            await events.aclose()
        await until(lambda: speculator.num_taken == 0)

    speculator = SlowSpeculator()
    with running(speculator) as worker:
        run(main(worker, speculator))
        assert run(collect(worker, 4)) == [40, 41, 42]


def test_leaving_before_the_engine_took_the_request_in() -> None:
    """The engine is in the middle of a long step when a caller comes and goes again."""

    async def main(worker: EngineWorker, speculator: SlowSpeculator) -> list[int]:
        speculator.go.clear()
        first = asyncio.create_task(collect(worker, 3))
        await until(speculator.in_step.is_set)
        hasty = asyncio.create_task(collect(worker, 4, max_new_tokens=None))
        await asyncio.sleep(0.02)
        hasty.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hasty
        speculator.go.set()
        tokens = await first
        await until(lambda: worker.num_open == 0)
        await until(lambda: speculator.num_taken == 0)  # the hasty one does not run for nobody
        return tokens

    speculator = SlowSpeculator()
    with running(speculator) as worker:
        assert run(main(worker, speculator)) == [30, 31, 32]
        assert worker.is_alive


def test_a_backend_that_fails_is_told_to_all_who_run_and_the_next_is_served() -> None:
    async def main(worker: EngineWorker, speculator: SlowSpeculator) -> list[Any]:
        speculator.is_broken = True
        callers = (collect(worker, number) for number in (3, 4, 5))
        results = await asyncio.gather(*callers, return_exceptions=True)
        speculator.is_broken = False
        return [*results, await collect(worker, 6)]

    speculator = SlowSpeculator()
    with running(speculator) as worker:
        *failures, last = run(main(worker, speculator))
        assert last == [60, 61, 62]
    assert all(isinstance(failure, BackendError) for failure in failures)
    assert {str(failure) for failure in failures} == {"the backend failed: the device is gone"}
    assert len({id(failure) for failure in failures}) == 3


def test_several_requests_of_one_caller_run_side_by_side() -> None:
    async def main(worker: EngineWorker) -> list[int]:
        requests = [Request((number,), max_new_tokens=6) for number in (3, 4)]
        return [index async for index, _ in worker.events(requests)]

    with running(SlowSpeculator()) as worker:
        order = run(main(worker))
    assert order[:4] == [0, 1, 0, 1]


def test_one_of_several_that_cannot_run_ends_them_all() -> None:
    async def main(worker: EngineWorker, speculator: SlowSpeculator) -> None:
        with pytest.raises(RequestError):
            async for _ in worker.events([Request((3,)), Request(())]):
                pass
        await until(lambda: speculator.num_taken == 0)

    speculator = SlowSpeculator()
    with running(speculator) as worker:
        run(main(worker, speculator))


def test_a_step_that_hangs_is_answered_when_the_time_is_over() -> None:
    async def main(worker: EngineWorker, speculator: SlowSpeculator) -> None:
        speculator.go.clear()
        with pytest.raises(UnavailableError, match=r"no answer within 0\.05 s") as caught:
            async for _ in worker.events([Request((3,))], timeout_s=0.05):
                pass
        assert caught.value.status == 504
        speculator.go.set()
        await until(lambda: speculator.num_taken == 0 and worker.num_waiting == 0)

    speculator = SlowSpeculator()
    with running(speculator) as worker:
        run(main(worker, speculator))
        assert run(collect(worker, 4)) == [40, 41, 42]


def test_a_thread_that_dies_leaves_nobody_waiting() -> None:
    """Also those who came while it died, and those who come later."""

    class Dying(SlowSpeculator):
        def step(self, num_draft_tokens: int) -> list[StepResult]:
            self._wait()
            raise SystemExit("out of the thread")

    async def main(worker: EngineWorker, speculator: SlowSpeculator) -> list[Any]:
        speculator.go.clear()
        first = [asyncio.create_task(collect(worker, number)) for number in (3, 4)]
        await until(speculator.in_step.is_set)
        late = [asyncio.create_task(collect(worker, number)) for number in (5, 6)]
        await asyncio.sleep(0.01)
        speculator.go.set()
        told = await asyncio.gather(*first, *late, return_exceptions=True)
        await until(lambda: not worker.is_alive)
        last = await asyncio.gather(collect(worker, 7), return_exceptions=True)
        return [*told, *last]

    speculator = Dying()
    with running(speculator) as worker:
        told = run(main(worker, speculator))
    assert all(isinstance(error, BackendError) for error in told)
    assert [str(error) for error in told] == [
        *["the engine's thread died"] * 4,
        "the engine has stopped",
    ]


def test_failures_in_a_row_are_noticed_and_forgotten() -> None:
    speculator = SlowSpeculator()
    with running(speculator) as worker:
        speculator.is_broken = True
        for _ in range(MAX_FAILURES):
            assert not worker.is_broken
            with pytest.raises(BackendError):
                run(collect(worker, 3))
        assert worker.is_broken
        speculator.is_broken = False
        assert run(collect(worker, 3)) == [30, 31, 32]
        assert not worker.is_broken


def test_the_ends_of_requests_are_observed() -> None:
    seen: list[FinishEvent] = []
    loop = DecodeLoop(SlowSpeculator(), WordTokenizer().decode, draft_length=DraftLength())
    worker = EngineWorker(loop, observe=seen.append)
    worker.start()
    assert run(collect(worker, 3)) == [30, 31, 32]
    worker.stop()
    assert [(event.reason, event.num_tokens) for event in seen] == [("length", 3)]


def test_a_caller_whose_event_loop_has_ended_disturbs_nobody() -> None:
    async def leave_open(worker: EngineWorker) -> None:
        events = worker.events([Request((3,))])
        await anext(aiter(events))
        forgotten.append(events)

    forgotten: list[Any] = []
    speculator = SlowSpeculator()
    with running(speculator) as worker:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave_open(worker))
        loop.close()  # without shutdown_asyncgens: nothing was cancelled
        assert run(collect(worker, 4)) == [40, 41, 42]


def test_stopping_ends_what_runs_with_an_error() -> None:
    async def main(worker: EngineWorker) -> None:
        events = worker.events([Request((3,))])
        await anext(aiter(events))
        await asyncio.to_thread(worker.stop)
        with pytest.raises(BackendError, match="shutting down"):
            async for _ in events:
                pass
        with pytest.raises(BackendError, match="the engine has stopped"):
            await collect(worker, 3)

    speculator = SlowSpeculator()
    worker = EngineWorker(
        DecodeLoop(speculator, WordTokenizer().decode, draft_length=DraftLength.constant(4))
    )
    worker.start()
    run(main(worker))
    assert not worker.is_alive
    assert speculator.num_taken == 0
