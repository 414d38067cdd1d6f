"""The decode loop: requests join free slots, every running one takes a step, finished ones leave.

One loop for every drafter and backend; it never learns which. A caller drives it: `advance` does
one round and returns what happened. A request whose prefill or step fails ends with a `FailEvent`;
the others go on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from neuron_spec.backends.base import ChunkedSpeculator, PrefillResult, Speculator
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import Event, FailEvent, FinishEvent, FinishReason, LoopEvent
from neuron_spec.engine.request import Request
from neuron_spec.engine.running import Committed, Running, committed_by
from neuron_spec.engine.stopping import Decode, OutputCutter
from neuron_spec.metrics.totals import EngineTotals

PREFILL_TOKENS_PER_ROUND = 128
"""Prompt tokens after which a round goes on to the step, so that running requests do not stall; the
last prompt or chunk begun is finished."""


class DecodeLoop:
    """Runs requests on a speculator's slots; first come, first served.

    Prompts are prefilled one after another in the order they came, in chunks where the backend can
    (`ChunkedSpeculator`).
    """

    def __init__(
        self, speculator: Speculator, decode: Decode, *, draft_length: DraftLength
    ) -> None:
        self._speculator, self._decode = speculator, decode
        self._chunked = speculator if isinstance(speculator, ChunkedSpeculator) else None
        self._draft_length = draft_length
        self._waiting: deque[Running] = deque()
        self._slots: dict[int, Running] = {}
        self._prefilling: int | None = None
        self._is_step_due = False
        self._next_id = 0
        self.totals = EngineTotals()

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self._waiting and not self._slots

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests in a slot, those whose prompt is being run included."""
        return len(self._slots)

    @property
    def draft_length(self) -> int:
        """k of the next step; 0 where no running request speculates. Requests that wait and will
        have a slot count: a longer step now would keep them from it."""
        slots = list(self._slots.items())  # a copy: other threads ask too
        running = [running for slot, running in slots if slot != self._prefilling]
        if not any(one.request.speculate for one in running):
            return 0
        load = min(len(slots) + self.num_waiting, self._speculator.limits.batch_size)
        return self._draft_length.at(load)

    @property
    def _has_rows(self) -> bool:
        """Whether a step would do anything."""
        return len(self._slots) > (self._prefilling is not None)

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
            min_tokens=request.sampling.min_tokens,
        )
        self._next_id += 1
        self._waiting.append(Running(self._next_id, request, output, time.perf_counter()))
        return self._next_id

    def cancel(self, request_id: int) -> FinishEvent | None:
        """Drop a request wherever it is; None if it is not here any more."""
        for running in self._waiting:
            if running.request_id == request_id:
                self._waiting.remove(running)
                return self._finish(running, "cancelled")
        for slot, running in self._slots.items():
            if running.request_id == request_id:
                return self._leave(slot, "cancelled")
        return None

    def advance(self) -> list[LoopEvent]:
        """Half a round: fill free slots as far as its share of prompt tokens lasts, or one step of
        all that run. First tokens are told before the step, not after it."""
        if not (self._is_step_due and self._has_rows):
            events = list(self._prefill_round())
            self._is_step_due = bool(events)
            if events or not self._has_rows:
                return events
        self._is_step_due = False
        return self._step()

    def run(self) -> Iterator[Event]:
        """Advance until idle.

        Raises:
            Exception: whatever made a request fail.
        """
        while not self.is_idle:
            for event in self.advance():
                if isinstance(event, FailEvent):
                    raise event.error
                yield event

    def close(self) -> None:
        """Drop everything, so that the speculator's slots are free again."""
        for running in (*self._waiting, *self._slots.values()):
            self.cancel(running.request_id)

    def _prefill_round(self) -> Iterator[LoopEvent]:
        num_tokens = 0
        while num_tokens < PREFILL_TOKENS_PER_ROUND:
            if self._prefilling is None:
                yield from self._admit()
            slot = self._prefilling
            if slot is None:
                return
            num_tokens += self._num_next_tokens(slot)
            yield from self._prefill(slot)

    def _admit(self) -> Iterator[LoopEvent]:
        """Take the first waiting request into a free slot, if there are both."""
        free = (s for s in range(self._speculator.limits.batch_size) if s not in self._slots)
        slot = next(free, None)
        while self._waiting and slot is not None and self._prefilling is None:
            running = self._waiting.popleft()
            running.started_at = time.perf_counter()
            if running.output.reason is not None:  # nothing may be generated
                yield self._finish(running, running.output.reason)
                continue
            self._slots[slot] = running
            try:
                if self._chunked:
                    request = running.request
                    self._chunked.begin_prefill(slot, request.prompt_ids, request.decoding)
                self._prefilling = slot
            except Exception as error:
                yield self._fail(slot, error)

    def _num_next_tokens(self, slot: int) -> int:
        whole = len(self._slots[slot].request.prompt_ids)
        return min(whole, self._chunked.prefill_chunk_tokens) if self._chunked else whole

    def _prefill(self, slot: int) -> Iterator[LoopEvent]:
        """The prompt, or a chunk of it; after the last the request runs."""
        running = self._slots[slot]
        try:
            first = self._advance_prefill(slot, running.request)
        except Exception as error:
            yield self._fail(slot, error)
            return
        if first is not None:
            self._prefilling = None
            running.first_token_at = time.perf_counter()
            running.num_cached_tokens = first.num_cached_tokens
            self.totals.num_prompt_tokens += len(running.request.prompt_ids)
            self.totals.num_cached_tokens += first.num_cached_tokens
            yield from self._push(slot, [Committed(first.token, "plain", first.logprobs)])

    def _advance_prefill(self, slot: int, request: Request) -> PrefillResult | None:
        if self._chunked:
            return self._chunked.advance_prefill(slot)
        return self._speculator.prefill(slot, request.prompt_ids, request.decoding)

    def _step(self) -> list[LoopEvent]:
        try:
            results = self._speculator.step(self.draft_length)
        except Exception as error:
            running = [slot for slot in self._slots if slot != self._prefilling]
            return [self._fail(slot, error) for slot in running]
        events: list[LoopEvent] = []
        for result in results:
            if result.failure is not None:
                events.append(self._fail(result.slot, result.failure))
                continue
            counted = (result.num_drafted, result.num_accepted, result.num_positions)
            self._slots[result.slot].acceptance.add_step(*counted)
            self.totals.acceptance.add_step(*counted)
            events += self._push(result.slot, committed_by(result))
        return events

    def _push(self, slot: int, tokens: Sequence[Committed]) -> Iterator[LoopEvent]:
        """Hand committed tokens to the output, which may end inside the block."""
        running = self._slots[slot]
        for committed in tokens:
            self.totals.num_output_tokens += 1
            yield running.take(committed)
            if running.output.reason is not None:
                yield self._leave(slot, running.output.reason)
                return

    def _leave(self, slot: int, reason: FinishReason) -> FinishEvent:
        return self._finish(self._freed(slot), reason)

    def _fail(self, slot: int, error: Exception) -> FailEvent:
        self.totals.finished["failed"] += 1
        return FailEvent(self._freed(slot).request_id, error)

    def _freed(self, slot: int) -> Running:
        self._speculator.release(slot)
        if slot == self._prefilling:
            self._prefilling = None
        return self._slots.pop(slot)

    def _finish(self, running: Running, reason: FinishReason) -> FinishEvent:
        event = running.finish(reason, time.perf_counter())
        self.totals.finished[event.reason] += 1
        return event
