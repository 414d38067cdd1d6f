"""A submitted request on its way through the loop, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neuron_spec.backends.base import StepResult, TokenLogprobs
from neuron_spec.engine.events import FinishEvent, FinishReason, Origin, Timing, TokenEvent
from neuron_spec.engine.request import Request
from neuron_spec.engine.stopping import OutputCutter
from neuron_spec.metrics import AcceptanceCounts


class Committed(NamedTuple):
    """One committed token on its way to the output."""

    token: int
    origin: Origin
    logprobs: TokenLogprobs | None
    num_positions: int = 0


@dataclass
class Running:
    """A submitted request and what is known of it so far; times are `time.perf_counter()`."""

    request_id: int
    request: Request
    output: OutputCutter
    submitted_at: float
    started_at: float | None = None
    first_token_at: float | None = None
    acceptance: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    num_cached_tokens: int = 0

    def take(self, committed: Committed) -> TokenEvent:
        """Hand a token to the output."""
        offset = self.output.num_characters
        text = self.output.push(committed.token)
        return TokenEvent(
            self.request_id,
            committed.token,
            text,
            committed.origin,
            committed.logprobs,
            text_offset=offset,
            step=self.acceptance.num_steps,
            num_positions=committed.num_positions,
        )

    def finish(self, reason: FinishReason, now: float) -> FinishEvent:
        """The end; a stop string may be found in what was held back until now."""
        text = self.output.finish()
        first, submitted = self.first_token_at, self.submitted_at
        timing = Timing(
            queued_s=(self.started_at or now) - submitted,
            ttft_s=None if first is None else first - submitted,
            total_s=now - submitted,
        )
        final = "stop" if self.output.reason == "stop" else reason
        return FinishEvent(
            self.request_id,
            final,
            text,
            self.acceptance,
            timing,
            self.output.num_tokens,
            self.num_cached_tokens,
        )


def committed_by(result: StepResult) -> list[Committed]:
    """The tokens of one step with their origins."""
    logprobs: Sequence[TokenLogprobs | None] = result.logprobs or [None] * len(result.tokens)
    depth = result.num_drafted if result.num_positions is None else result.num_positions
    parts = zip(result.tokens, _origins(result, depth), logprobs, strict=True)
    return [Committed(*part, num_positions=depth) for part in parts]


def _origins(result: StepResult, depth: int) -> list[Origin]:
    accepted: list[Origin] = ["accepted"] * result.num_accepted
    if result.num_drafted == 0:
        return [*accepted, "plain"]
    return [*accepted, "bonus" if result.num_accepted == depth else "corrected"]
