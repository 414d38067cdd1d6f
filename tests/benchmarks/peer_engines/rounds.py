"""The run: every engine loaded in its own process, then turn by turn."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from .engines import INSTALL, PLAIN, Engine
from .figures import Measured
from .process import EngineFailedError, EngineMissingError

PAUSE_S = 0.2
"""Between turns: threads of the one before may spin for a while."""
WARM_UP_TOKENS = 16

Absent = dict[str, str]
"""Engine -> why it has no figures."""


class Answers(Protocol):
    """A `Worker`, or what stands in for one."""

    version: str

    def ask(self, prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
        """See `worker.py`."""

    def close(self) -> None:
        """End it."""


Start = Callable[[Engine], Answers]


@contextmanager
def opened(
    engines: Sequence[Engine], start: Start
) -> Iterator[tuple[dict[Engine, Answers], Absent]]:
    """All that can be loaded, one after the other; ended at the end.

    Raises:
        EngineFailedError: our plain decoding, which all others are compared with, did not load.
    """
    workers: dict[Engine, Answers] = {}
    absent: Absent = {}
    try:
        for engine in engines:
            try:
                workers[engine] = start(engine)
            except EngineMissingError:
                absent[engine.name] = f"not installed: {INSTALL[engine.family]}"
            except EngineFailedError as error:
                _drop(engine, error, absent)
        yield workers, absent
    finally:
        for worker in workers.values():
            worker.close()


def _drop(engine: Engine, error: EngineFailedError, absent: Absent) -> None:
    """A peer that fails is told of, as a failure of ours is; without our plain there is no run."""
    if engine.name == PLAIN:
        raise error
    absent[engine.name] = f"failed: {error}"


def take_turns(
    opened_engines: tuple[dict[Engine, Answers], Absent],
    prompts: Sequence[list[int]],
    *,
    num_tokens: int,
    repetitions: int,
    before_each: Callable[[], None] = lambda: None,
    pause_s: float = PAUSE_S,
) -> tuple[Mapping[str, Measured], Absent]:
    """Every engine on every prompt, in another order each turn, repetition by repetition.

    An engine that fails has no figures at all: a median over what worked would flatter it.

    Args:
        before_each: called before each repetition.
    """
    workers, absent = dict(opened_engines[0]), dict(opened_engines[1])
    results = {engine: Measured(engine, worker.version) for engine, worker in workers.items()}

    def turn(engine: Engine, prompt: int, count: int, *, counts: bool) -> None:
        try:
            answer = workers[engine].ask(prompts[prompt], count)
        except EngineFailedError as error:
            _drop(engine, error, absent)
            del workers[engine]
            return
        if counts:
            results[engine].add(prompt, answer)
        time.sleep(pause_s)

    for engine in list(workers):
        turn(engine, 0, min(num_tokens, WARM_UP_TOKENS), counts=False)
    for repetition in range(repetitions):
        before_each()
        for prompt in range(len(prompts)):
            order = list(workers)
            random.Random(repetition * len(prompts) + prompt).shuffle(order)
            for engine in order:
                turn(engine, prompt, num_tokens, counts=True)
    return {engine.name: results[engine] for engine in workers}, absent
