"""What the engine's thread tells event loops: in order, and with one wake-up a round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from conftest import WordTokenizer

from neuron_spec.backends.base import Limits
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.serving.batches import Mailbox, Post
from neuron_spec.serving.worker import EngineWorker

NUM_ROWS, NUM_TOKENS = 6, 12
LIMITS = Limits(batch_size=NUM_ROWS, max_prompt_tokens=8, max_total_tokens=64, num_draft_tokens=4)


class Home:
    """An event loop that counts how often it is woken."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.num_wakeups, self._is_closed = 0, is_closed

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        self.num_wakeups += 1
        call(*args)


def test_each_event_loop_is_woken_once_and_told_in_order() -> None:
    first, closed, second = Home(), Home(is_closed=True), Home()
    told: list[Any] = []
    post = Post()
    for number, home in enumerate([first, closed, second] * 3):
        post.add(Mailbox(home, told.append), [number])  # type: ignore[arg-type, list-item]
    post.send()
    assert told == [[0], [3], [6], [2], [5], [8]]
    assert (first.num_wakeups, second.num_wakeups) == (1, 1)


def test_a_step_of_many_rows_wakes_the_event_loop_once() -> None:
    replies = {(row,): tuple(range(NUM_TOKENS)) for row in range(NUM_ROWS)}
    speculator = ScriptedSpeculator(replies, accepted=[1], limits=LIMITS)
    num_advances, num_wakeups = 0, 0

    class Loop(DecodeLoop):
        def advance(self) -> Any:
            nonlocal num_advances
            num_advances += 1
            return super().advance()

    loop = Loop(speculator, WordTokenizer().decode, draft_length=DraftLength.constant(4))
    worker = EngineWorker(loop)

    async def main() -> list[int]:
        nonlocal num_wakeups
        home = asyncio.get_running_loop()
        wake = home.call_soon_threadsafe

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal num_wakeups
            num_wakeups += 1
            return wake(*args, **options)

        home.call_soon_threadsafe = counted  # type: ignore[method-assign]
        requests = [Request((row,), max_new_tokens=NUM_TOKENS) for row in range(NUM_ROWS)]
        return [index async for index, _ in worker.events(requests)]

    worker.start()
    order = asyncio.run(asyncio.wait_for(main(), 20))
    worker.stop()
    assert len(order) > num_advances  # several rows were told at once
    assert num_wakeups <= num_advances
