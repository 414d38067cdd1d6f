"""Speculation off and on under load: a fixed number of requests in flight, the ways in turn.

Closed loop: as soon as one request ends the next begins, and rows run again where they are few
(`passes_at`), so that the concurrency is what it is called for most of a round. All ways of
decoding run within every repetition, in an order that rotates, so that a machine that grows slower
or faster takes from none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_spec.bench.peers import Peer
from neuron_spec.bench.rounds import BY_LOAD, OFF, ON, Round, Rounds, Served, passes_at, rotated
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import FailEvent, FinishEvent, TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.engine.session import Session
from neuron_spec.errors import RequestError, UserError

WARM_UP_TOKENS = 8
NO_OFF = (
    "its graph drafts and verifies in every step, so that a step without speculation takes as long"
)
NO_OFF_MEND = "give --off an artifact of the same target with draft.method 'none'"


@dataclass(frozen=True)
class LoadSettings:
    """What is run.

    Attributes:
        options: of every request, as in `Session.request`: `max_new_tokens`, `temperature`, …
    """

    concurrencies: tuple[int, ...] = (1,)
    repetitions: int = 3
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Way:
    """A way of decoding in process."""

    session: Session
    draft_length: DraftLength

    def run(
        self, requests: Sequence[Request], concurrency: int, passes: int = 1
    ) -> tuple[float, list[Served]]:
        """See `run_closed`."""
        return run_closed(self.session, requests, self.draft_length, concurrency, passes)


def ways_of(session: Session, off: Session | None = None) -> dict[str, Way]:
    """Off, on, and the artifact's own `by_load` where it has one.

    Args:
        off: of the target alone; without it the same artifact with k = 0, but for one whose steps
            take as long then: that one has no off.
    """
    limits = session.speculator.limits
    largest = DraftLength.constant(limits.num_draft_tokens)
    ways = {}
    if off is not None or not limits.always_drafts:
        ways[OFF] = Way(off or session, DraftLength())
    ways[ON] = Way(session, largest)
    if session.draft_length != largest:
        ways[BY_LOAD] = Way(session, session.draft_length)
    return ways


def measure_loads(
    session: Session,
    rows: Sequence[WorkloadRow],
    settings: LoadSettings,
    *,
    off: Session | None = None,
    peer: Peer | None = None,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> Rounds:
    """Run every row at every concurrency in every way, in turn.

    Args:
        off: see `ways_of`.

    Raises:
        UserError: more requests at a time than an artifact holds, or outputs of other lengths.
        RequestError: a row leaves no room for output.
    """
    ways, result = ways_of(session, off), Rounds()
    for each in (session, *([off] if off else [])):
        check_concurrencies(each, settings.concurrencies)
    requests = {
        way: [_request(each.session, row, settings.options) for row in rows]
        for way, each in ways.items()
    }
    if off is not None:
        _check_lengths(ways, requests)
    if OFF not in ways:
        result.notes.append(f"off is not measured: {NO_OFF}; {NO_OFF_MEND}")
    start = time.perf_counter()
    _warm_up(rows[0], ways, settings)
    result.warm_up_s = time.perf_counter() - start
    total = settings.repetitions * len(settings.concurrencies) * len(ways)
    for repetition in range(settings.repetitions):
        for concurrency in settings.concurrencies:
            passes = passes_at(concurrency, len(rows))
            for way in rotated(list(ways), repetition):
                progress("rounds", len(result.rounds), total)
                wall_s, served = ways[way].run(requests[way], concurrency, passes)
                result.rounds.append(Round(way, concurrency, repetition, wall_s, tuple(served)))
        if peer is not None:
            _run_peer(session, requests[ON], peer, result)
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
    session: Session,
    requests: Sequence[Request],
    draft_length: DraftLength,
    concurrency: int,
    passes: int = 1,
) -> tuple[float, list[Served]]:
    """Seconds, and every request served, so many `passes` over all with `concurrency` of them in
    flight."""
    loop = DecodeLoop(session.speculator, session.tokenizer.decode, draft_length=draft_length)
    waiting = list(enumerate(requests))[::-1] * passes
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


def _check_lengths(ways: dict[str, Way], requests: dict[str, list[Request]]) -> None:
    """Longer outputs on one side would be compared with shorter ones."""
    limits = {way: each.session.speculator.limits for way, each in ways.items()}
    lengths = {
        way: [request.output_limit(limits[way]) for request in own] for way, own in requests.items()
    }
    if lengths[OFF] != lengths[ON]:
        totals = [limits[way].max_total_tokens for way in (ON, OFF)]
        raise UserError(
            "the two artifacts would not give outputs of the same lengths",
            where="--off",
            found=f"shape.max_total_tokens {totals[0]} and {totals[1]}",
            mend="give a smaller --max-new-tokens, or compile both with the same shape",
        )


def _warm_up(row: WorkloadRow, ways: dict[str, Way], settings: LoadSettings) -> None:
    short = {**settings.options, "max_new_tokens": WARM_UP_TOKENS}
    for concurrency in settings.concurrencies:
        for way in ways.values():
            way.run([way.session.request(row.prompt, **short)] * concurrency, concurrency)


def _run_peer(session: Session, requests: Sequence[Request], peer: Peer, result: Rounds) -> None:
    """The peer is asked one row after the other, for as many tokens."""
    for row, request in enumerate(requests):
        start = time.perf_counter()
        tokens = peer(request.prompt_ids, request.output_limit(session.speculator.limits))
        rate = len(tokens) / (time.perf_counter() - start)
        result.peer_tokens_per_s.setdefault(row, []).append(rate)
