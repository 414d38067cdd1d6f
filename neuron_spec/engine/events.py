"""The one stream of events that generation, serving, metrics and verification read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neuron_spec.backends.base import TokenLogprobs
from neuron_spec.metrics import AcceptanceCounts

Origin = Literal["plain", "accepted", "corrected", "bonus"]
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class TokenEvent:
    """One output token.

    Attributes:
        text: what this token adds to the text; may be empty while a character or a possible stop
            string is incomplete.
        logprobs: of the token, if the request wants them.
        origin: `accepted` draft, the target's `corrected` token after a rejection, its `bonus`
            after a fully accepted block, or `plain` where nothing was drafted.
        text_offset: characters of the output before this token, an incomplete one not counted.
        step: number of the verification step that committed it, from 1; 0 is the prompt's own.
        num_positions: positions at which that step proposed something; 0 where nothing was.
    """

    request_id: int
    token_id: int
    text: str
    origin: Origin
    logprobs: TokenLogprobs | None = None
    text_offset: int = 0
    step: int = 0
    num_positions: int = 0


@dataclass(frozen=True)
class Timing:
    """Times of one request, in seconds.

    Attributes:
        queued_s: from submission to the start of its prefill.
        ttft_s: from submission to the first token (TTFT); None without output.
        total_s: from submission to the end.
    """

    queued_s: float
    ttft_s: float | None
    total_s: float

    def tpot_s(self, num_tokens: int) -> float | None:
        """Time per output token after the first (TPOT)."""
        if self.ttft_s is None or num_tokens < 2:
            return None
        return (self.total_s - self.ttft_s) / (num_tokens - 1)


@dataclass(frozen=True)
class FinishEvent:
    """The end of one request.

    Attributes:
        text: what was held back until now.
        num_cached_tokens: of the prompt, see `PrefillResult`.
    """

    request_id: int
    reason: FinishReason
    text: str
    acceptance: AcceptanceCounts
    timing: Timing
    num_tokens: int = 0
    num_cached_tokens: int = 0


@dataclass(frozen=True)
class FailEvent:
    """The end of a request that could not be begun or could not go on."""

    request_id: int
    error: Exception


Event = TokenEvent | FinishEvent
"""What becomes of a request that runs."""
LoopEvent = Event | FailEvent
