"""An OpenAI-compatible server as a system, with log-probabilities if it gives them.

Prompts go through /v1/completions: what both systems get is then the same. Conversations do so as
token ids where a tokenizer is known, and through /v1/chat/completions, with the server's own chat
template, where none is or the server has no /v1/completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

from neuron_spec.client import Answer, AnswerError, Api, OpenAIClient, is_conversation, request_of
from neuron_spec.engine.tokenizer import Prompt, Tokenizer
from neuron_spec.equivalence.systems import Alternative, Ask, Reply, Token

NUM_LOGPROBS = 5  # what OpenAI's completions give at most
_SENT = ("temperature", "top_p", "top_k", "min_p", "stop", "ignore_eos", "presence_penalty",
         "frequency_penalty")  # fmt: skip
_NO_ROUTE = (404, 405)


class EndpointSystem:
    """A server at `base_url` (up to and with `/v1`).

    What the server has, completions and log-probabilities, is tried with the first prompt: without
    log-probabilities near-ties cannot be told from defects, unless the other system tells its own.
    """

    max_prompt_tokens: int | None = None

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        num_connections: int = 4,
        extra: Mapping[str, Any] | None = None,
        transport: Any = None,
    ) -> None:
        """`extra` are fields that are added to every request."""
        self._client = OpenAIClient(base_url, model, transport=transport)
        self.name, self._extra = self._client.name, dict(extra or {})
        self._tokenizer, self._num_connections = tokenizer, num_connections
        self._has_completions = True
        self._has_logprobs: bool | None = None

    def reply(self, asks: Sequence[Ask]) -> list[Reply]:
        """See `System`."""
        if self._has_logprobs is None and asks:
            self._has_logprobs = self._try(asks[0])
        with ThreadPoolExecutor(self._num_connections) as pool:
            return list(pool.map(self._ask, asks))

    def alternatives(
        self, prompt: Prompt, reply: Reply, character: int
    ) -> tuple[int, list[Alternative]] | None:
        """See `System`; from the log-probabilities of the reply."""
        covering = [token for token in reply.tokens or () if token.offset <= character]
        if not covering or not covering[-1].top:
            return None
        top = covering[-1].top
        best = max(top.values())
        found = [Alternative(text, best - value) for text, value in top.items()]
        return covering[-1].offset, sorted(found, key=lambda a: a.distance)

    def _ask(self, ask: Ask) -> Reply:
        api, body = self._request(ask)
        if self._has_logprobs:
            body |= _logprob_fields(api)
        return _reply(self._client.ask(api, body))

    def _request(self, ask: Ask) -> tuple[Api, dict[str, Any]]:
        options = {name: ask.options[name] for name in _SENT if name in ask.options}
        asked = {"temperature": 0, **options, "seed": ask.seed, **self._extra}
        api, body = request_of(self._prompt(ask.prompt), asked)
        return api, {**body, "max_tokens": ask.max_new_tokens}

    def _prompt(self, prompt: Prompt) -> Prompt:
        if is_conversation(prompt) and self._tokenizer is not None and self._has_completions:
            return self._tokenizer.encode(prompt)
        return prompt

    def _try(self, ask: Ask) -> bool:
        """Whether log-probabilities are given; notes where there are no completions."""
        api, body = self._request(ask)
        try:
            answer = self._client.ask(api, {**body, "max_tokens": 1, **_logprob_fields(api)})
        except AnswerError as error:
            if error.status in _NO_ROUTE and api == "completions":
                if not is_conversation(ask.prompt):
                    raise AnswerError(
                        "/v1/completions is not there",
                        where=self.name,
                        found=error.kind,
                        mend="give prompts as `messages` to a server that knows conversations only",
                    ) from None
                self._has_completions = False
                return self._try(ask)
            if error.status is None or error.status in _NO_ROUTE:
                raise
            return False
        return bool((_reply(answer).tokens or (Token("", 0),))[0].top)


def _logprob_fields(api: Api) -> dict[str, Any]:
    if api == "completions":
        return {"logprobs": NUM_LOGPROBS}
    return {"logprobs": True, "top_logprobs": NUM_LOGPROBS}


def _reply(answer: Answer) -> Reply:
    texts, values, tops = _told(answer.logprobs or {})
    # Not `text_offset`: some servers count the prompt in it, some do not.
    offsets = accumulate(map(len, texts), initial=0)
    tokens = tuple(
        Token(text, offset, value, top or {})
        for text, offset, value, top in zip(texts, offsets, values, tops, strict=False)
    )
    known = [value for value in values if value is not None]
    prompt_tokens = (answer.usage or {}).get("prompt_tokens")
    return Reply(
        text=answer.text,
        tokens=tokens or None,
        logprobs=tuple(known) if known and len(known) == len(texts) else None,
        num_tokens=answer.num_tokens,
        num_prompt_tokens=prompt_tokens if isinstance(prompt_tokens, int) else None,
    )


def _told(logprobs: Mapping[str, Any]) -> tuple[list[str], list[float | None], list[Any]]:
    """Tokens, their log-probabilities, and the likeliest ones at each, of either form."""
    if content := logprobs.get("content"):  # of conversations
        tops = [
            {other["token"]: other["logprob"] for other in part.get("top_logprobs") or ()}
            for part in content
        ]
        return [part["token"] for part in content], [part["logprob"] for part in content], tops
    texts: list[str] = logprobs.get("tokens") or []
    values: list[float | None] = logprobs.get("token_logprobs") or [None] * len(texts)
    return texts, values, logprobs.get("top_logprobs") or [None] * len(texts)
