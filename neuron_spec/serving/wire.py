"""The OpenAI protocol's requests as data. A field is honoured or refused by name, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.errors import RequestError

# What greedy decoding honours by doing nothing: fields with the values that change nothing.
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": (None, 0),
    "top_p": (None, 1),
    "n": (None, 1),
    "best_of": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False, 0),
    "echo": (None, False),
    "suffix": (None, ""),
}
_GREEDY = "this artifact verifies greedily"
_REASONS = {
    "temperature": f"{_GREEDY}: send temperature 0 or leave it out",
    "top_p": f"{_GREEDY}: send top_p 1 or leave it out",
}


class WireModel(BaseModel):
    """Unknown fields are refused with their names."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(WireModel):
    """What a stream ends with."""

    include_usage: bool = False


class CommonRequest(WireModel):
    """Fields of both endpoints."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    ignore_eos: bool = False
    seed: int | None = None  # greedy output is the same for every seed
    user: str | None = None  # the caller's own label
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | int | None = None

    def options(self) -> dict[str, Any]:
        """Options for `Session.request`, the output limit aside.

        Raises:
            RequestError: a field asks for what greedy decoding cannot honour.
        """
        for field, neutral in _NEUTRAL_VALUES.items():
            value = getattr(self, field, None)
            if value not in neutral:
                reason = _REASONS.get(field, "not supported by this server")
                raise RequestError(reason, field=field, found=value)
        if self.stream_options and not self.stream:
            raise RequestError("only with stream: true", field="stream_options")
        stop = self.stop if self.stop is not None else ()
        return {"stop": stop, "ignore_eos": self.ignore_eos}


class CompletionRequest(CommonRequest):
    """`POST /v1/completions`."""

    # Strict, or ["3", 4] would be taken for token ids.
    prompt: str | list[StrictInt] | list[str] | list[list[StrictInt]]
    max_tokens: int | None = Field(16, ge=0)
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def output_limit(self) -> int | None:
        """OpenAI's default is 16."""
        return self.max_tokens

    def prompts(self) -> list[Prompt]:
        """One prompt a choice."""
        if isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int):
            return list(self.prompt)
        return [self.prompt]  # type: ignore[list-item]


class TextPart(WireModel):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(WireModel):
    """One turn; content may come in text parts."""

    role: Literal["system", "user", "assistant", "developer", "tool"]
    content: str | list[TextPart]
    name: str | None = None

    def flat(self) -> dict[str, str]:
        """Role and joined text, as chat templates take them."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text}


class ChatRequest(CommonRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)

    @property
    def output_limit(self) -> int | None:
        """The newer name wins."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    def prompts(self) -> list[Prompt]:
        """The conversation."""
        return [[message.flat() for message in self.messages]]
