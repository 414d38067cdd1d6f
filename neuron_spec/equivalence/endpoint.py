"""An OpenAI-compatible server as a system: `/v1/completions`, with log-probabilities if given."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

from neuron_spec.engine.tokenizer import Prompt, Tokenizer
from neuron_spec.equivalence.systems import Alternative, Ask, Reply, Token
from neuron_spec.errors import DependencyError, UserError

NUM_LOGPROBS = 5  # what OpenAI's completions give at most
_SENT = ("temperature", "top_p", "top_k", "min_p", "stop", "ignore_eos", "presence_penalty",
         "frequency_penalty")  # fmt: skip


class EndpointSystem:
    """A server at `base_url` (up to and with `/v1`); conversations need a tokenizer to become ids.

    Whether the server gives log-probabilities is tried on the first request: without them
    near-ties cannot be told from defects.
    """

    max_prompt_tokens: int | None = None

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        num_connections: int = 4,
        timeout_s: float = 600.0,
        transport: Any = None,
    ) -> None:
        self.name = base_url if model is None else f"{base_url}#{model}"
        self._tokenizer, self._num_connections = tokenizer, num_connections
        self._client = _client(base_url, timeout_s, transport)
        self._model = model or self._first_model()
        self._has_logprobs: bool | None = None

    def reply(self, asks: Sequence[Ask]) -> list[Reply]:
        """See `System`."""
        if self._has_logprobs is None and asks:
            self._has_logprobs = self._try_logprobs(asks[0])
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
        body = self._body(ask)
        if self._has_logprobs:
            body["logprobs"] = NUM_LOGPROBS
        return _reply(self._post(body))

    def _body(self, ask: Ask) -> dict[str, Any]:
        options = {name: ask.options[name] for name in _SENT if name in ask.options}
        seed = {} if ask.seed is None else {"seed": ask.seed}
        return {
            "model": self._model,
            "prompt": self._prompt(ask.prompt),
            "max_tokens": ask.max_new_tokens,
            "temperature": 0,
            **options,
            **seed,
        }

    def _prompt(self, prompt: Prompt) -> str | list[int]:
        if isinstance(prompt, str):
            return prompt
        parts: list[Any] = list(prompt)
        if not parts or not isinstance(parts[0], dict):
            return parts
        if self._tokenizer is None:
            raise UserError(
                "a conversation needs a tokenizer to go through /v1/completions",
                where=self.name,
                mend="compare with an artifact of the same target, or give plain prompts",
            )
        return list(self._tokenizer.encode(prompt))

    def _try_logprobs(self, ask: Ask) -> bool:
        body = {**self._body(ask), "max_tokens": 1, "logprobs": NUM_LOGPROBS}
        response = self._send(body)
        if response.status_code != 200:
            return False
        return bool((response.json()["choices"][0].get("logprobs") or {}).get("top_logprobs"))

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        response = self._send(body)
        try:
            data = response.json()
        except ValueError:
            data = None
        if response.status_code != 200 or not isinstance(data, dict) or not data.get("choices"):
            raise UserError(
                "the server does not answer as OpenAI's does",
                where=self.name,
                found=f"{response.status_code}: {response.text[:200]}",
                expected="/v1/completions with choices",
            )
        return data

    def _send(self, body: dict[str, Any]) -> Any:
        import httpx

        try:
            return self._client.post("completions", json=body)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _first_model(self) -> str:
        import httpx

        try:
            models = self._client.get("models").json()["data"]
            return str(models[0]["id"])
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        except (ValueError, KeyError, IndexError, TypeError):
            mend = "name the model: URL#MODEL"
            raise UserError("/v1/models names no model", where=self.name, mend=mend) from None

    def _unreachable(self, error: Exception) -> UserError:
        reason = str(error) or type(error).__name__
        mend = "start the server, or mend the address: http://host:port/v1"
        return UserError(f"cannot be reached: {reason}", where=self.name, mend=mend)


def _client(base_url: str, timeout_s: float, transport: Any) -> Any:
    try:
        import httpx
    except ImportError:
        raise DependencyError(
            "endpoints need httpx", mend="pip install 'neuron-spec[evaluate]'"
        ) from None
    try:
        return httpx.Client(
            base_url=base_url.rstrip("/") + "/", timeout=timeout_s, transport=transport
        )
    except httpx.InvalidURL as error:
        raise UserError(f"not an address: {error}", where=base_url) from None


def _reply(data: dict[str, Any]) -> Reply:
    choice, usage = data["choices"][0], data.get("usage") or {}
    logprobs = choice.get("logprobs") or {}
    texts: list[str] = logprobs.get("tokens") or []
    values: list[float | None] = logprobs.get("token_logprobs") or [None] * len(texts)
    tops: list[Any] = logprobs.get("top_logprobs") or [None] * len(texts)
    # Not `text_offset`: some servers count the prompt in it, some do not.
    offsets = accumulate(map(len, texts), initial=0)
    tokens = tuple(
        Token(text, offset, value, top or {})
        for text, offset, value, top in zip(texts, offsets, values, tops, strict=False)
    )
    known = [value for value in values if value is not None]
    return Reply(
        text=str(choice.get("text", "")),
        tokens=tokens or None,
        logprobs=tuple(known) if known and len(known) == len(texts) else None,
        num_tokens=usage.get("completion_tokens"),
        num_prompt_tokens=usage.get("prompt_tokens"),
    )
