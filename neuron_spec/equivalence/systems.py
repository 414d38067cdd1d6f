"""Whatever answers prompts and is compared: a session with speculation on or off, or an endpoint.

Systems are compared by token ids where both have them, otherwise by text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from neuron_spec.engine.events import FailEvent, FinishEvent, TokenEvent
from neuron_spec.engine.request import MAX_LOGPROBS
from neuron_spec.engine.session import Session
from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.metrics import AcceptanceCounts


@dataclass(frozen=True)
class Token:
    """One token of a reply that came as text.

    Attributes:
        offset: characters of the reply before it.
        logprob: its log-probability, and `top` those of the likeliest texts in its place.
    """

    text: str
    offset: int
    logprob: float | None = None
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """One output.

    Attributes:
        token_ids: None where a system tells only text.
        tokens: None where it tells neither tokens nor log-probabilities.
        logprobs: of every token, of the target's own distribution; None if not told.
        num_tokens: None if not told.
    """

    text: str
    token_ids: tuple[int, ...] | None = None
    tokens: tuple[Token, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    num_tokens: int | None = None
    num_prompt_tokens: int | None = None
    acceptance: AcceptanceCounts | None = None


@dataclass(frozen=True)
class Ask:
    """One prompt with how it is to be continued."""

    prompt: Prompt
    max_new_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True)
class Alternative:
    """What could have come at a place of a reply: a text, and how far below the best it was."""

    text: str
    distance: float


class System(Protocol):
    """Answers prompts."""

    name: str

    @property
    def max_prompt_tokens(self) -> int | None:
        """The longest prompt it takes; None if not known."""

    def reply(self, asks: Sequence[Ask]) -> list[Reply]:
        """Answer all, side by side as far as the system can."""

    def alternatives(
        self, prompt: Prompt, reply: Reply, character: int
    ) -> tuple[int, list[Alternative]] | None:
        """The token of its reply that covers a character: where it begins, and what the target
        thought of the likeliest ones there, best first; None if that is not told."""


class SessionSystem:
    """A session of this process, decoding with speculation on or off."""

    def __init__(self, session: Session, *, speculate: bool, name: str = "") -> None:
        self.session, self._speculate = session, speculate
        self.name = name or f"speculation {'on' if speculate else 'off'}"

    @property
    def max_prompt_tokens(self) -> int | None:
        """See `System`."""
        return self.session.speculator.limits.max_prompt_tokens

    def reply(self, asks: Sequence[Ask]) -> list[Reply]:
        """See `System`."""
        loop = self.session.loop(speculate=self._speculate)
        collected: dict[int, _Collected] = {}
        try:
            for ask in asks:
                seed = {} if ask.seed is None else {"seed": ask.seed}
                options = {"max_new_tokens": ask.max_new_tokens, **ask.options, **seed}
                request = self.session.request(ask.prompt, **options)
                collected[loop.submit(request)] = _Collected(len(request.prompt_ids))
            while not loop.is_idle:
                for event in loop.advance():
                    if isinstance(event, FailEvent):
                        raise event.error
                    collected[event.request_id].add(event)
        finally:
            loop.close()
        return [entry.reply() for entry in collected.values()]

    def scores(self, prefix: Sequence[int]) -> Any | None:
        """[vocab] logits of the token after a prefix; None where a device keeps them."""
        try:
            result = self.session.speculator.prefill(0, prefix)
        except ValueError:  # longer than the graphs for prompts
            return None
        self.session.speculator.release(0)
        return result.logits

    def alternatives(
        self, prompt: Prompt, reply: Reply, character: int
    ) -> tuple[int, list[Alternative]] | None:
        """See `System`; by a fresh prefill up to that token."""
        ids, decode = reply.token_ids or (), self.session.tokenizer.decode
        offsets = [len(decode(ids[:n])) for n in range(len(ids) + 1)]
        index = max((n for n in range(len(ids)) if offsets[n] <= character), default=None)
        if index is None:
            return None
        logits = self.scores((*self.session.tokenizer.encode(prompt), *ids[:index]))
        if logits is None:
            return None
        best = logits.topk(min(MAX_LOGPROBS, len(logits)))
        start = offsets[index]
        found = [
            Alternative(decode((*ids[:index], token))[start:], float(best.values[0]) - value)
            for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        return start, found


class _Collected:
    """Events of one request, gathered into a reply."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._acceptance: AcceptanceCounts | None = None

    def add(self, event: TokenEvent | FinishEvent) -> None:
        self._texts.append(event.text)
        if isinstance(event, FinishEvent):
            self._acceptance = event.acceptance
            return
        self._ids.append(event.token_id)
        if event.logprobs is not None:
            self._logprobs.append(event.logprobs.logprob)

    def reply(self) -> Reply:
        return Reply(
            text="".join(self._texts),
            token_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs) if self._logprobs else None,
            num_tokens=len(self._ids),
            num_prompt_tokens=self._num_prompt_tokens,
            acceptance=self._acceptance,
        )
