"""The decode loop: requests join free slots, every running one takes a step, finished ones leave.

One loop for every drafter and backend; it never learns which. A caller drives it: `advance` does
one round and returns what happened.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neuron_spec.backends.base import Speculator, StepResult, TokenLogprobs
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import Event, FinishEvent, FinishReason, Origin, Timing, TokenEvent
from neuron_spec.engine.request import Request
from neuron_spec.engine.stopping import Decode, OutputCutter
from neuron_spec.metrics import AcceptanceCounts


class _Committed(NamedTuple):
    """One committed token on its way to the output."""

    token: int
    origin: Origin
    logprobs: TokenLogprobs | None


@dataclass
class _Running:
    """A submitted request and what is known of it so far."""

    request_id: int
    request: Request
    output: OutputCutter
    submitted_at: float
    started_at: float | None = None
    first_token_at: float | None = None
    acceptance: AcceptanceCounts = field(default_factory=AcceptanceCounts)


class DecodeLoop:
    """Runs requests on a speculator's slots; first come, first served."""

    def __init__(
        self, speculator: Speculator, decode: Decode, *, draft_length: DraftLength
    ) -> None:
        self._speculator, self._decode = speculator, decode
        self._draft_length = draft_length
        self._waiting: deque[_Running] = deque()
        self._slots: dict[int, _Running] = {}
        self._next_id = 0

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self._waiting and not self._slots

    def submit(self, request: Request) -> int:
        """Queue a request; returns the id its events carry.

        Raises:
            RequestError: the request can never run on this artifact.
        """
        limit = request.output_limit(self._speculator.limits)
        output = OutputCutter(
            self._decode,
            limit=limit,
            stop=request.stop,
            stop_token_ids=request.stop_token_ids,
        )
        self._next_id += 1
        self._waiting.append(_Running(self._next_id, request, output, time.perf_counter()))
        return self._next_id

    def cancel(self, request_id: int) -> FinishEvent | None:
        """Drop a request wherever it is; None if it is not here any more."""
        for running in self._waiting:
            if running.request_id == request_id:
                self._waiting.remove(running)
                return self._finish_event(running, "cancelled")
        for slot, running in self._slots.items():
            if running.request_id == request_id:
                return self._leave(slot, "cancelled")
        return None

    def advance(self) -> list[Event]:
        """One round: fill free slots (a prefill each), then one step of all that run."""
        events = [event for slot in self._free_slots() for event in self._admit(slot)]
        if self._slots:
            for result in self._speculator.step(self._draft_length.at(len(self._slots))):
                events += self._take(result)
        return events

    def run(self) -> Iterator[Event]:
        """Advance until idle."""
        while not self.is_idle:
            yield from self.advance()

    def close(self) -> None:
        """Drop everything, so that the speculator's slots are free again."""
        for running in (*self._waiting, *self._slots.values()):
            self.cancel(running.request_id)

    def _free_slots(self) -> list[int]:
        return [s for s in range(self._speculator.limits.batch_size) if s not in self._slots]

    def _admit(self, slot: int) -> Iterator[Event]:
        """Start waiting requests in a free slot until one stays."""
        while self._waiting and slot not in self._slots:
            running = self._waiting.popleft()
            running.started_at = time.perf_counter()
            if running.output.reason is not None:  # nothing may be generated
                yield self._finish_event(running, running.output.reason)
                continue
            self._slots[slot] = running  # before the prefill: if that fails, `close` frees the slot
            request = running.request
            first = self._speculator.prefill(slot, request.prompt_ids, request.decoding)
            running.first_token_at = time.perf_counter()
            yield from self._push(slot, [_Committed(first.token, "plain", first.logprobs)])

    def _take(self, result: StepResult) -> Iterator[Event]:
        running = self._slots[result.slot]
        running.acceptance.add_step(result.num_drafted, result.num_accepted, result.num_positions)
        logprobs = result.logprobs or [None] * len(result.tokens)
        parts = zip(result.tokens, _origins(result), logprobs, strict=True)
        yield from self._push(result.slot, [_Committed(*part) for part in parts])

    def _push(self, slot: int, tokens: Sequence[_Committed]) -> Iterator[Event]:
        """Hand committed tokens to the output, which may end inside the block."""
        running = self._slots[slot]
        for committed in tokens:
            text = running.output.push(committed.token)
            yield TokenEvent(
                running.request_id, committed.token, text, committed.origin, committed.logprobs
            )
            if running.output.reason is not None:
                yield self._leave(slot, running.output.reason)
                return

    def _leave(self, slot: int, reason: FinishReason) -> FinishEvent:
        self._speculator.release(slot)
        return self._finish_event(self._slots.pop(slot), reason)

    def _finish_event(self, running: _Running, reason: FinishReason) -> FinishEvent:
        text = running.output.finish()  # may find a stop string in what was held back
        now, submitted = time.perf_counter(), running.submitted_at
        first = running.first_token_at
        timing = Timing(
            queued_s=(running.started_at or now) - submitted,
            ttft_s=None if first is None else first - submitted,
            total_s=now - submitted,
        )
        final = "stop" if running.output.reason == "stop" else reason
        return FinishEvent(running.request_id, final, text, running.acceptance, timing)


def _origins(result: StepResult) -> list[Origin]:
    accepted: list[Origin] = ["accepted"] * result.num_accepted
    if result.num_drafted == 0:
        return [*accepted, "plain"]
    is_whole = result.num_accepted == result.num_drafted
    return [*accepted, "bonus" if is_whole else "corrected"]
