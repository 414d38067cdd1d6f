"""What an engine has done since it began: running counts, written by its thread, read by any."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from neuron_spec.metrics.acceptance import AcceptanceCounts


@dataclass
class EngineTotals:
    """Counts only grow, so that a reader in another thread sees them at most a moment late.

    Attributes:
        num_prompt_tokens: of prompts whose prefill is done; once for each of a request's choices.
        num_cached_tokens: of these, not run again because an earlier prompt began the same.
        num_output_tokens: told to callers, those cut off by a stop string included.
        finished: ended requests by reason: stop, length, cancelled, failed.
        acceptance: over all verification steps of all requests.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    acceptance: AcceptanceCounts = field(default_factory=AcceptanceCounts)
