"""A session behind a name: what it answers, how it is, and when it is too busy."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from neuron_spec.engine.events import FinishEvent
from neuron_spec.engine.request import Request
from neuron_spec.engine.session import Session
from neuron_spec.errors import RequestError
from neuron_spec.metrics.prometheus import ServerMetrics
from neuron_spec.serving.choices import requests_of
from neuron_spec.serving.errors import UnavailableError
from neuron_spec.serving.ids import Ids
from neuron_spec.serving.settings import ServerSettings
from neuron_spec.serving.streaming import Answer, Batches, Endpoint, chunks, whole
from neuron_spec.serving.wire import ChatRequest, CommonRequest, CompletionRequest
from neuron_spec.serving.worker import EngineWorker

_RECENT = 0.2  # weight of the newest request in the mean duration
_LONGEST_WAIT_S = 60
_ENCODING_THREADS = 4
_SCHEMA_THREADS = 8  # more than are compiled at once: those beyond are told so, in time


class ServedModel:
    """A session behind a name, with its worker and metrics."""

    def __init__(
        self,
        session: Session,
        name: str,
        *,
        settings: ServerSettings,
        card: dict[str, Any],
        speculate: bool = True,
    ) -> None:
        """`card` is what /v1/models tells beside what the session itself knows."""
        self.name, self._session, self._settings = name, session, settings
        loop = session.loop(speculate=speculate)
        self._speculates = speculate and session.speculator.limits.num_draft_tokens > 0
        self._loop, self.worker = loop, EngineWorker(loop, observe=self._observe)
        self.metrics = ServerMetrics(
            name, loop.totals, lambda: (self.worker.num_running, self.worker.num_waiting)
        )
        self._created, self._given_card, self._mean_s = int(time.time()), card, 1.0
        self._ids = Ids()
        # Two, so that whoever waits for a schema's grammar holds up nobody else.
        self._encoders = ThreadPoolExecutor(_ENCODING_THREADS, "neuron-spec-encode")
        self._compilers = ThreadPoolExecutor(_SCHEMA_THREADS, "neuron-spec-schemas")

    async def close(self) -> None:
        """End what runs."""
        for threads in (self._encoders, self._compilers):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.worker.stop)

    def card(self) -> dict[str, Any]:
        """The entry in /v1/models."""
        limits = self._session.speculator.limits
        return {
            "id": self.name,
            "object": "model",
            "created": self._created,
            "owned_by": "neuron-spec",
            "max_model_len": limits.max_total_tokens,
            "max_prompt_tokens": limits.max_prompt_tokens,
            "can_sample": limits.can_sample,
            "default_temperature": 1.0 if limits.can_sample else 0.0,
            "has_logprobs": limits.has_logprobs,
            "always_drafts": limits.always_drafts,
            **self._given_card,
        }

    def state(self) -> dict[str, Any]:
        """What /health tells of the engine."""
        names = ("speculation", "verification_rule", "claims")
        return {
            "model": self.name,
            "num_running": self.worker.num_running,
            "num_waiting": self.worker.num_waiting,
            "draft_length": self._loop.draft_length,
            "acceptance_length": self._loop.totals.acceptance.length,
            **{name: self._given_card[name] for name in names if name in self._given_card},
        }

    async def answer(
        self, wire: CompletionRequest | ChatRequest, endpoint: Endpoint
    ) -> tuple[Answer, Batches]:
        """An answer that has not begun, and the events that will fill it.

        Raises:
            RequestError: a field cannot be honoured.
            UnavailableError: too many wait.
        """
        if wire.model != self.name:
            raise RequestError("no such model", field="model", found=wire.model)
        if wire.speculate and not self._speculates:
            raise RequestError("this server drafts nothing", field="speculate", found="true")
        # Before any work is done for it, and again after, when others may have come.
        self._check_room(wire, len(wire.prompts()) * (wire.n or 1))
        # In a thread, so that tokenizing a long prompt does not hold up the event loop.
        threads = self._compilers if wire.wants_grammar else self._encoders
        home = asyncio.get_running_loop()
        requests = await home.run_in_executor(threads, requests_of, wire, self._session)
        self._check_room(wire, len(requests))
        prompts = requests[:: wire.n or 1]
        answer = Answer(
            endpoint,
            self.name,
            self._ids.new(),
            num_prompt_tokens=sum(len(request.prompt_ids) for request in prompts),
            echoes=self._echoes(wire, requests),
            token_bytes=None if wire.num_logprobs is None else self._session.tokenizer.token_bytes,
            tells_acceptance=wire.wants_acceptance,
            tells_tokens=bool(wire.include_tokens),
            tells_running_usage=wire.wants_running_usage,
            choices_per_prompt=wire.n or 1,
        )
        timeout_s = self._settings.request_timeout_s
        return answer, self.worker.events(requests, timeout_s=timeout_s)

    def _echoes(self, wire: CommonRequest, requests: list[Request]) -> list[str]:
        if not isinstance(wire, CompletionRequest) or not wire.echo:
            return [""] * len(requests)
        decode = self._session.tokenizer.decode
        texts = [
            prompt if isinstance(prompt, str) else decode(cast(list[int], prompt))
            for prompt in wire.prompts()
        ]
        return [text for text in texts for _ in range(wire.n or 1)]

    def _check_room(self, wire: CommonRequest, num_choices: int) -> None:
        batch_size = self._session.speculator.limits.batch_size
        longest = self._settings.max_waiting + batch_size
        if num_choices > longest:
            raise RequestError(
                "more choices than this server takes at once",
                field="n" if wire.n and wire.n > 1 else "prompt",
                found=num_choices,
                expected=f"at most {longest}",
            )
        num_before = self.worker.num_open
        if num_before + num_choices > longest:
            wait_s = math.ceil(self._mean_s * self.worker.num_waiting / batch_size)
            raise UnavailableError(
                f"{num_before} requests run or wait, {longest} is the most",
                status=429,
                retry_after_s=min(max(wait_s, 1), _LONGEST_WAIT_S),
            )

    def _observe(self, event: FinishEvent) -> None:
        """Called in the engine's thread."""
        timing = event.timing
        running_s = timing.total_s - timing.queued_s
        self._mean_s += _RECENT * (running_s - self._mean_s)
        self.metrics.observe(
            queued_s=timing.queued_s,
            ttft_s=timing.ttft_s,
            tpot_s=timing.tpot_s(event.num_tokens),
            total_s=timing.total_s,
        )


async def respond(
    answer: Answer, batches: Batches, wire: CommonRequest
) -> dict[str, Any] | AsyncGenerator[str, None]:
    """A whole response, or, once its first tokens are there, a stream: what fails before them has
    its own status."""
    if not wire.stream:
        return await whole(answer, batches)
    first = await anext(batches)
    return chunks(answer, first, batches, include_usage=wire.wants_usage)
