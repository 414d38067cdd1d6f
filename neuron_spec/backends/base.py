"""The seam between the engine and whatever computes: the step.

NxDI's fused graph drafts and verifies in one call, so the seam is not "propose, then verify" but
one whole speculation step. Engine, metrics, server and bench know this file only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from neuron_spec.sampling import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from neuron_spec.artifacts import Artifact
    from neuron_spec.checkpoints import PreparedCheckpoint
    from neuron_spec.spec import BuildSpec


@dataclass(frozen=True)
class Limits:
    """What an opened artifact can hold and do; all lengths in tokens.

    Attributes:
        max_total_tokens: prompt plus output of one request. The compiled length is larger by
            k + 1, so that a step may always look k + 1 positions ahead.
        num_draft_tokens: the largest k a step may be asked for; 0 without a draft.
        can_sample: whether its verification rule is one for sampled output; otherwise requests
            are greedy.
        has_logprobs: whether log-probabilities can be told.
        vocab_size: number of token ids, where a request's options may name some; None where
            nothing is known.
    """

    batch_size: int
    max_prompt_tokens: int
    max_total_tokens: int
    num_draft_tokens: int
    can_sample: bool = False
    has_logprobs: bool = False
    vocab_size: int | None = None


@dataclass(frozen=True)
class Decoding:
    """How the tokens of one request are chosen, and what is told about them.

    Attributes:
        stop_token_ids: the ids that `sampling.min_tokens` forbids at first.
        num_logprobs: how many of the likeliest ids are told at every token, beside the token
            itself; None for no log-probabilities at all.
    """

    sampling: SamplingParams = SamplingParams()
    stop_token_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None


GREEDY = Decoding()


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities where one output token was chosen: of the target's own distribution,
    before temperature and the other sampling options.

    Attributes:
        logprob: of the token.
        top: (id, log-probability) of the likeliest ids, likeliest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class PrefillResult:
    """The target's first new token after a prompt.

    Attributes:
        token: its id.
        logits: [vocab] float32 logits it was chosen from, or None where a device keeps them.
        logprobs: of the token, if the request wants them.
    """

    token: int
    logits: Tensor | None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class StepResult:
    """What one step committed in one slot.

    Attributes:
        tokens: the accepted drafts, then the target's own token (correction, bonus, or the only
            one when nothing was drafted); 1 … k + 1 ids.
        num_drafted: proposals that were verified, at most k.
        num_accepted: how many of them were kept; always `len(tokens) - 1`.
        logprobs: of every token, if the request wants them.
        num_positions: depth of the verified tree; None for chains, where it is `num_drafted`.
        accepted_nodes: of the verified tree, from its first level down; None for chains, and where
            a device does not tell.
    """

    slot: int
    tokens: tuple[int, ...]
    num_drafted: int
    num_accepted: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    num_positions: int | None = None
    accepted_nodes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StepPhases:
    """Where the time of a step went, in seconds. A backend that can tell has an attribute
    `tells_phases`, off at first, and with it on leaves those of the last step in `phases`."""

    draft_s: float
    verify_s: float


class Speculator(Protocol):
    """An opened artifact: `limits.batch_size` slots, each holding one running sequence."""

    @property
    def limits(self) -> Limits:
        """What it can hold."""

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        """Start a sequence in a free slot and return its first new token.

        Raises:
            ValueError: empty or too long prompt, or no such slot.
        """

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """One speculation step of every running slot with k = `num_draft_tokens` (0 … limit).

        The caller keeps at most `max_total_tokens` tokens a slot and releases slots that are done.
        """

    def release(self, slot: int) -> None:
        """Free a slot; what it held is forgotten."""


@runtime_checkable
class ChunkedSpeculator(Speculator, Protocol):
    """A speculator that can run a prompt in pieces, with steps of the running slots between them.

    `prefill` gives the same as all pieces in turn. A slot can be released in the middle.
    """

    @property
    def prefill_chunk_tokens(self) -> int:
        """Prompt tokens of one piece; the last may be shorter."""

    def begin_prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> None:
        """Take a free slot for a prompt, one that is not run yet; errors as in `prefill`."""

    def advance_prefill(self, slot: int) -> PrefillResult | None:
        """Run the next piece; the first new token after the last, else None."""


class Backend(Protocol):
    """How artifacts of one kind are built and opened."""

    name: str

    def libraries(self) -> dict[str, str]:
        """Versions that decide what is computed; part of the fingerprint."""

    def build(self, spec: BuildSpec, prepared: PreparedCheckpoint, folder: Path) -> dict[str, Any]:
        """Write what `open` needs into `folder` (empty, not yet an artifact); return a report."""

    def open(self, artifact: Artifact) -> Speculator:
        """Load an artifact of this backend."""
