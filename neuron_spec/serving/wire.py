"""The OpenAI protocol's requests as data. A field is honoured or refused by name, never ignored.

Beside OpenAI's fields stand vLLM's extra ones (`top_k`, `min_p`, `repetition_penalty`,
`min_tokens`, `ignore_eos`, `stop_token_ids`) and our own `include_acceptance`, `include_tokens` and
`speculate`. A null means what leaving the field out means.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from neuron_spec.engine.request import MAX_LOGPROBS
from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.errors import RequestError

_TEXT = {"type": "text"}
MAX_CHOICES = 128  # a prompt, as in the OpenAI API
MAX_PROMPTS = 2048  # as in the OpenAI API
MAX_BIASES = 1024  # every step goes through all of them, while others wait for it
_SAMPLING_FIELDS = (
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "seed",
)


_MAX_UNKNOWN = 4  # fields that are named in the answer
# A list is refused at its first fault: to find and to tell a million takes longer than any answer,
# and nobody else is served meanwhile.
_Ids = Annotated[list[int], Field(fail_fast=True)]


class WireModel(BaseModel):
    """Unknown fields are refused with their names; "1" is no number and 1 no truth value."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, data: Any) -> Any:
        """However many there are, only the first of the unknown fields are gone through."""
        known = cls.model_fields
        if not isinstance(data, dict) or len(data) <= len(known):
            return data
        unknown = ((name, value) for name, value in data.items() if name not in known)
        kept = {name: data[name] for name in known if name in data}
        return kept | dict(islice(unknown, _MAX_UNKNOWN))


def _few_biases(biases: Any) -> Any:
    """Refused before they are gone through."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        raise PydanticCustomError(
            "too_many",
            "too many token ids: {found}, expected at most {most}",
            {"found": len(biases), "most": MAX_BIASES},
        )
    return biases


class StreamOptions(WireModel):
    """What a stream tells beside its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: with include_usage, in every chunk
    include_obfuscation: Literal[False] | None = None  # nothing is padded here
    include_acceptance: bool | None = None


class CommonRequest(WireModel):
    """Fields of both endpoints."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_acceptance: bool | None = None
    include_tokens: bool | None = None  # every token with its origin
    speculate: bool | None = None  # false: nothing is drafted for this request
    stop: str | Annotated[list[str], Field(fail_fast=True, max_length=4)] | None = None
    stop_token_ids: _Ids | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], BeforeValidator(_few_biases)] | None = None
    min_tokens: int | None = None
    seed: int | None = None
    user: str | None = None  # the caller's own label
    response_format: dict[str, Any] | None = None

    @property
    @abstractmethod
    def output_limit(self) -> int | None:
        """The most tokens a choice may get; None for as many as fit."""

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are told; None for no log-probabilities."""

    @property
    def wants_grammar(self) -> bool:
        """Whether the output is held to a format."""
        return self.response_format not in (None, _TEXT)

    @property
    def wants_acceptance(self) -> bool:
        """Whether usage tells what became of the drafted tokens."""
        options = self.stream_options
        return bool(self.include_acceptance or (options and options.include_acceptance))

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        options = self.stream_options
        return self.wants_acceptance or bool(options and options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk tells the usage so far."""
        options = self.stream_options
        return bool(options and options.include_usage and options.continuous_usage_stats)

    @abstractmethod
    def prompts(self) -> list[Prompt]:
        """One or several prompts; each gets `n` choices."""

    def options(self, *, can_sample: bool) -> dict[str, Any]:
        """Options for `Session.request`.

        Args:
            can_sample: of the artifact; the temperature left out is then 1, as in the OpenAI API,
                and otherwise 0.

        Raises:
            RequestError: fields that contradict each other, or that nothing here can honour.
        """
        self._check()
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        options = {name: value for name, value in given.items() if value is not None}
        default = 1.0 if can_sample else 0.0
        options["temperature"] = default if self.temperature is None else self.temperature
        return {
            **options,
            "logit_bias": _bias_by_id(self.logit_bias or {}),
            "stop": self.stop if self.stop is not None else (),
            "stop_token_ids": self.stop_token_ids or (),
            "ignore_eos": bool(self.ignore_eos),
            "max_new_tokens": self.output_limit,
            "logprobs": self.num_logprobs,
            "response_format": self.response_format if self.wants_grammar else None,
        }

    def _check(self) -> None:
        if self.stream_options and not self.stream:
            raise RequestError("only with stream: true", field="stream_options")
        least, most = self.min_tokens, self.output_limit
        if least is not None and most is not None and least > most:
            raise RequestError(
                "more than the most", field="min_tokens", found=least, expected=f"at most {most}"
            )


class CompletionRequest(CommonRequest):
    """`POST /v1/completions`."""

    prompt: (
        str
        | _Ids
        | Annotated[list[str], Field(fail_fast=True, max_length=MAX_PROMPTS)]
        | Annotated[list[_Ids], Field(fail_fast=True, max_length=MAX_PROMPTS)]
    )
    max_tokens: int | None = Field(16, ge=0)  # OpenAI's default
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def output_limit(self) -> int | None:
        """See `CommonRequest.output_limit`."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """See `CommonRequest.num_logprobs`."""
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """See `CommonRequest.prompts`."""
        if isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int):
            return list(self.prompt)
        return [self.prompt]  # type: ignore[list-item]

    def _check(self) -> None:
        super()._check()
        if self.best_of not in (None, self.n or 1):
            raise RequestError(
                "every choice is returned", field="best_of", found=self.best_of, expected="n"
            )
        if self.suffix:
            raise RequestError("this server cannot fill in", field="suffix")
        if self.echo and self.logprobs is not None:
            raise RequestError(
                "a prompt's own log-probabilities are not computed",
                field="echo",
                mend="leave out echo or logprobs",
            )


class TextPart(WireModel):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(WireModel):
    """One turn; content may come in text parts."""

    role: Literal["system", "user", "assistant", "developer", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None

    def flat(self) -> dict[str, str]:
        """Role and joined text, as chat templates take them."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text}


class ChatRequest(CommonRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1)]
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def output_limit(self) -> int | None:
        """The newer name wins."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    @property
    def num_logprobs(self) -> int | None:
        """See `CommonRequest.num_logprobs`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def prompts(self) -> list[Prompt]:
        """The conversation."""
        return [[message.flat() for message in self.messages]]

    def _check(self) -> None:
        super()._check()
        if self.top_logprobs and not self.logprobs:
            raise RequestError("only with logprobs: true", field="top_logprobs")


def _bias_by_id(logit_bias: dict[str, float]) -> dict[int, float]:
    for key in logit_bias:
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise RequestError(
                "not a token id", field="logit_bias", found=repr(key[:40]), expected="ids as text"
            )
    return {int(key): bias for key, bias in logit_bias.items()}
