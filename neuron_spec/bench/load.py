"""Speculation off and on under load: a fixed number of requests in flight, the ways in turn.

Closed loop: as soon as one request ends the next begins, so that the concurrency is what it is
called until the last few requests. All ways of decoding run within every repetition, in an order
that rotates, so that a machine that grows slower or faster takes from none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_spec.bench.peers import Peer
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import FailEvent, FinishEvent, Timing, TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.engine.session import Session
from neuron_spec.errors import RequestError, UserError
from neuron_spec.metrics import AcceptanceCounts

OFF, ON, BY_LOAD = "off", "on", "by-load"
WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Served:
    """One request that was served: its row in the workload, what came out, and when.

    Attributes:
        pieces: (text, origin of the token that completed it), in order.
    """

    row: int
    token_ids: tuple[int, ...]
    text: str
    pieces: tuple[tuple[str, str], ...]
    acceptance: AcceptanceCounts
    timing: Timing

    @property
    def tokens_per_s(self) -> float:
        """Of this request alone, prompt processing included."""
        return len(self.token_ids) / self.timing.total_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first."""
        return self.timing.tpot_s(len(self.token_ids))


@dataclass(frozen=True)
class Round:
    """All rows once, in one way of decoding, with so many requests in flight."""

    way: str
    concurrency: int
    repetition: int
    wall_s: float
    requests: tuple[Served, ...]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests over the time of the round."""
        return sum(len(request.token_ids) for request in self.requests) / self.wall_s


@dataclass
class Rounds:
    """A whole run: the measured rounds, what a peer made of the rows, and the warm-up's time."""

    rounds: list[Round] = field(default_factory=list)
    peer_tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    warm_up_s: float = 0.0

    def of(self, way: str, concurrency: int) -> list[Round]:
        """The repetitions of one way at one concurrency, in order."""
        return [r for r in self.rounds if (r.way, r.concurrency) == (way, concurrency)]


@dataclass(frozen=True)
class LoadSettings:
    """What is run.

    Attributes:
        options: of every request, as in `Session.request`: `max_new_tokens`, `temperature`, …
    """

    concurrencies: tuple[int, ...] = (1,)
    repetitions: int = 3
    options: dict[str, Any] = field(default_factory=dict)


def ways_of(session: Session) -> dict[str, DraftLength]:
    """Off, on, and the artifact's own `by_load` where it has one."""
    largest = DraftLength.constant(session.speculator.limits.num_draft_tokens)
    ways = {OFF: DraftLength(), ON: largest}
    if session.draft_length != largest:
        ways[BY_LOAD] = session.draft_length
    return ways


def measure_loads(
    session: Session,
    rows: Sequence[WorkloadRow],
    settings: LoadSettings,
    *,
    peer: Peer | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> Rounds:
    """Run every row at every concurrency in every way, in turn.

    Raises:
        UserError: more requests at a time than the artifact holds.
        RequestError: a row leaves no room for output.
    """
    check_concurrencies(session, settings.concurrencies)
    requests = [_request(session, row, settings.options) for row in rows]
    ways, result = ways_of(session), Rounds()
    start = time.perf_counter()
    _warm_up(session, rows[0], ways, settings)
    result.warm_up_s = time.perf_counter() - start
    total = settings.repetitions * len(settings.concurrencies) * len(ways)
    for repetition in range(settings.repetitions):
        for concurrency in settings.concurrencies:
            for way in _rotated(list(ways), repetition):
                progress("rounds", len(result.rounds), total)
                wall_s, served = run_closed(session, requests, ways[way], concurrency)
                result.rounds.append(Round(way, concurrency, repetition, wall_s, tuple(served)))
        if peer is not None:
            _run_peer(session, requests, peer, result)
    progress("rounds", total, total)
    return result


def check_concurrencies(session: Session, concurrencies: Sequence[int]) -> None:
    """Refuse what the artifact cannot hold.

    Raises:
        UserError: more requests at a time than slots.
    """
    slots = session.speculator.limits.batch_size
    if max(concurrencies) > slots:
        raise UserError(
            "more requests at a time than the artifact has slots",
            where="concurrency",
            found=max(concurrencies),
            expected=f"at most {slots} (shape.batch_size)",
            mend="compile with a larger shape.batch_size",
        )


def run_closed(
    session: Session, requests: Sequence[Request], draft_length: DraftLength, concurrency: int
) -> tuple[float, list[Served]]:
    """Seconds, and every request served, with `concurrency` of them in flight."""
    loop = DecodeLoop(session.speculator, session.tokenizer.decode, draft_length=draft_length)
    waiting = list(enumerate(requests))[::-1]
    open_: dict[int, _Collected] = {}
    done: list[Served] = []
    start = time.perf_counter()
    try:
        while waiting or open_:
            while waiting and len(open_) < concurrency:
                row, request = waiting.pop()
                open_[loop.submit(request)] = _Collected(row)
            for event in loop.advance():
                if isinstance(event, FailEvent):
                    raise event.error
                open_[event.request_id].add(event)
                if isinstance(event, FinishEvent):
                    done.append(open_.pop(event.request_id).served(event))
    finally:
        loop.close()
    return time.perf_counter() - start, sorted(done, key=lambda served: served.row)


class _Collected:
    """Events of one request."""

    def __init__(self, row: int) -> None:
        self._row = row
        self._tokens: list[int] = []
        self._pieces: list[tuple[str, str]] = []

    def add(self, event: TokenEvent | FinishEvent) -> None:
        origin = "held back"
        if isinstance(event, TokenEvent):
            self._tokens.append(event.token_id)
            origin = event.origin
        if event.text:
            self._pieces.append((event.text, origin))

    def served(self, finish: FinishEvent) -> Served:
        return Served(
            self._row,
            tuple(self._tokens),
            "".join(text for text, _ in self._pieces),
            tuple(self._pieces),
            finish.acceptance,
            finish.timing,
        )


def _request(session: Session, row: WorkloadRow, options: dict[str, Any]) -> Request:
    request = session.request(row.prompt, **options)
    if request.output_limit(session.speculator.limits) < 1:  # a rate of nothing has no ratio
        raise RequestError(
            "the prompt leaves no room for output",
            field="prompt",
            found=f"{len(request.prompt_ids)} tokens",
            mend="shorten the prompt, or compile with a larger shape.max_total_tokens",
        )
    return request


def _warm_up(
    session: Session, row: WorkloadRow, ways: dict[str, DraftLength], settings: LoadSettings
) -> None:
    short = {**settings.options, "max_new_tokens": WARM_UP_TOKENS}
    request = session.request(row.prompt, **short)
    for concurrency in settings.concurrencies:
        for draft_length in ways.values():
            run_closed(session, [request] * concurrency, draft_length, concurrency)


def _rotated(ways: list[str], by: int) -> list[str]:
    place = by % len(ways)
    return ways[place:] + ways[:place]


def _run_peer(session: Session, requests: Sequence[Request], peer: Peer, result: Rounds) -> None:
    """The peer is asked one row after the other, for as many tokens."""
    for row, request in enumerate(requests):
        start = time.perf_counter()
        tokens = peer(request.prompt_ids, request.output_limit(session.speculator.limits))
        rate = len(tokens) / (time.perf_counter() - start)
        result.peer_tokens_per_s.setdefault(row, []).append(rate)
