"""What is asked of the engine: one prompt with its limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neuron_spec.backends.base import Decoding, Limits, check_options
from neuron_spec.errors import RequestError
from neuron_spec.grammars import Grammar
from neuron_spec.sampling_params import SamplingParams

MAX_LOGPROBS = 20  # the OpenAI API's


@dataclass(frozen=True)
class Request:
    """One prompt to continue.

    Attributes:
        prompt_ids: at least one token.
        max_new_tokens: output limit; None means as far as the compiled length allows.
        stop: strings that end the output; they are cut from it.
        stop_token_ids: ids that end the output (the model's end-of-sequence ids); the id itself
            stays the output's last token.
        sampling: how tokens are chosen; greedy by default.
        num_logprobs: how many of the likeliest ids are told at every token, with their
            log-probabilities and the token's own; None for none of it.
        speculate: False decodes this request with the target alone.
        grammar: what the output is held to until it is complete; `stop` and the limit may cut it.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = SamplingParams()
    num_logprobs: int | None = None
    speculate: bool = True
    grammar: Grammar | None = None

    @property
    def decoding(self) -> Decoding:
        """What the backend has to know of it."""
        return Decoding(
            self.sampling, self.stop_token_ids, self.num_logprobs, self.speculate, self.grammar
        )

    def output_limit(self, limits: Limits) -> int:
        """How many tokens this request may get.

        Raises:
            RequestError: the prompt is empty or too long, or a field is out of bounds.
        """
        length = len(self.prompt_ids)
        if length == 0:
            raise RequestError("the prompt is empty", field="prompt", expected="at least one token")
        longest = limits.max_prompt_tokens
        if length > longest:
            raise RequestError(
                "the prompt is too long",
                field="prompt",
                found=f"{length} tokens",
                expected=f"at most {longest} (shape.max_prompt_tokens of the artifact)",
                mend="shorten the prompt, or compile with a larger shape.max_prompt_tokens",
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise RequestError(
                "negative", field="max_new_tokens", found=self.max_new_tokens, expected="0 or more"
            )
        if any(not text for text in self.stop):
            raise RequestError("an empty stop string", field="stop", expected="non-empty strings")
        self._check_sampling(limits)
        room = limits.max_total_tokens - length
        return room if self.max_new_tokens is None else min(self.max_new_tokens, room)

    def _check_sampling(self, limits: Limits) -> None:
        if not self.sampling.is_greedy and not limits.can_sample:
            raise RequestError(
                "this artifact verifies greedily",
                field="temperature",
                found=self.sampling.temperature,
                expected="0",
                mend="compile with another verification.rule to sample",
            )
        count = self.num_logprobs
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            raise RequestError(
                "out of range", field="logprobs", found=count, expected=f"0 … {MAX_LOGPROBS}"
            )
        if count is not None and not limits.has_logprobs:
            raise RequestError("this backend does not tell them", field="logprobs", found=count)
        check_options(self.sampling, limits)
        self._check_grammar(limits)
        check_token_ids("logit_bias", self.sampling.logit_bias, limits.vocab_size)

    def _check_grammar(self, limits: Limits) -> None:
        if self.grammar is None:
            return
        check_has_grammars(limits)
        if self.sampling.min_tokens > 0:
            raise RequestError(
                "the response format alone says where the output ends",
                field="min_tokens",
                found=self.sampling.min_tokens,
                mend="leave it out, or ask for more in the schema",
            )


def check_has_grammars(limits: Limits) -> None:
    """Whether outputs can be held to a grammar.

    Raises:
        RequestError: they cannot.
    """
    if not limits.has_grammars:
        raise RequestError(
            "this backend cannot hold its output to a schema",
            field="response_format",
            expected='{"type": "text"}',
        )


def check_token_ids(field: str, ids: Iterable[int], vocab_size: int | None) -> None:
    """Whether ids that a request names exist.

    Raises:
        RequestError: one does not.
    """
    for token in ids:
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            raise RequestError(
                "not a token of this model",
                field=field,
                found=token,
                expected="0 or more" if vocab_size is None else f"0 … {vocab_size - 1}",
            )
