"""The seam between the engine and whatever computes: the step.

NxDI's fused graph drafts and verifies in one call, so the seam is not "propose, then verify" but
one whole speculation step. Engine, metrics, server and bench know this file only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from neuron_spec.errors import RequestError
from neuron_spec.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from neuron_spec.grammars import Grammar
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
        sampling_options: the fields of `SamplingParams` that can be honoured; None for all.
        max_top_k: the largest top_k; None for any.
        always_drafts: whether a step runs the graph of the largest k whatever it is asked for: it
            takes as long, and may draft as much. With k = 0 it keeps the target's own token alone,
            which is no measure of the target alone.
        has_grammars: whether outputs can be held to a grammar.
    """

    batch_size: int
    max_prompt_tokens: int
    max_total_tokens: int
    num_draft_tokens: int
    can_sample: bool = False
    has_logprobs: bool = False
    vocab_size: int | None = None
    sampling_options: frozenset[str] | None = None
    max_top_k: int | None = None
    always_drafts: bool = False
    has_grammars: bool = False

    @classmethod
    def of(cls, spec: BuildSpec) -> Limits:
        """What the spec says; backends know more."""
        return cls(
            batch_size=spec.shape.batch_size,
            max_prompt_tokens=spec.shape.max_prompt_tokens,
            max_total_tokens=spec.shape.max_total_tokens,
            num_draft_tokens=spec.num_draft_tokens,
            can_sample=spec.verification.rule != "greedy",
        )


def check_options(sampling: SamplingParams, limits: Limits) -> None:
    """Whether every option that changes the output can be honoured.

    Raises:
        RequestError: one cannot; `field` names it.
    """
    known = limits.sampling_options
    refused = [] if known is None else [name for name in sampling.in_effect if name not in known]
    if refused:
        raise RequestError(
            "the device that chooses the tokens has no such option",
            field=refused[0],
            found=getattr(sampling, refused[0]),
            mend="leave it out; an artifact whose tokens the host chooses would take it",
        )
    most = limits.max_top_k
    if most is not None and "top_k" in sampling.in_effect and sampling.top_k > most:
        raise RequestError(
            "more than the device looks at",
            field="top_k",
            found=sampling.top_k,
            expected=f"at most {most} (neuron.sampling.global_topk), or 0 for all of these",
        )


@dataclass(frozen=True)
class Decoding:
    """How the tokens of one request are chosen, and what is told about them.

    Attributes:
        stop_token_ids: the ids that `sampling.min_tokens` forbids at first.
        num_logprobs: how many of the likeliest ids are told at every token, beside the token
            itself; None for no log-probabilities at all.
        speculate: False proposes nothing to this request, whatever k a step has: it then commits
            one token a step, beside others that speculate.
        grammar: what the output is held to, at every drafted token too; None for free text.
    """

    sampling: SamplingParams = SamplingParams()
    stop_token_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None
    speculate: bool = True
    grammar: Grammar | None = None


GREEDY = Decoding()


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities where one output token was chosen: of the target's own distribution,
    before temperature, a grammar's mask and the other sampling options.

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
        num_cached_tokens: of the prompt, not run again because an earlier one began the same.
    """

    token: int
    logits: Tensor | None
    logprobs: TokenLogprobs | None = None
    num_cached_tokens: int = 0


@dataclass(frozen=True)
class StepResult:
    """What one step committed in one slot.

    Attributes:
        tokens: the accepted drafts, then the target's own token (correction, bonus, or the only
            one when nothing was drafted); 1 … k + 1 ids.
        num_drafted: proposals that were verified; at most k, but where `limits.always_drafts`.
        num_accepted: how many of them were kept; always `len(tokens) - 1`.
        logprobs: of every token, if the request wants them.
        num_positions: depth of the verified tree; None for chains, where it is `num_drafted`.
        accepted_nodes: of the verified tree, from its first level down; None for chains, and where
            a device does not tell.
        failure: why this slot cannot go on; it then has no tokens, and is to be released.
    """

    slot: int
    tokens: tuple[int, ...]
    num_drafted: int
    num_accepted: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    num_positions: int | None = None
    accepted_nodes: tuple[int, ...] | None = None
    failure: RequestError | None = None


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
        """One speculation step of every running slot with k = `num_draft_tokens` (0 … limit), or
        with 0 where its decoding does not speculate.

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


@runtime_checkable
class PrefixCachingSpeculator(Speculator, Protocol):
    """A speculator that can keep the beginnings of prompts for those that begin the same."""

    def cache_prefixes(self, max_bytes: int) -> None:
        """Keep so much from now on; 0, as at first, keeps nothing. Results are the same bit for
        bit, only sooner."""
