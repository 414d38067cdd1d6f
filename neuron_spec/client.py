"""A client of OpenAI-compatible servers: one answer at a time, with when its parts came.

Servers differ in what they leave out. Some know conversations only, some stream whatever they are
asked for, some tell no usage, no log-probabilities, no metrics: each is an answer here that lacks
something, and what it is needed for says so.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from neuron_spec.errors import DependencyError, UserError

Api = Literal["completions", "chat/completions"]
API_KEY = "OPENAI_API_KEY"
OWNER = "neuron-spec"  # `owned_by` in the model cards of our own server
_QUOTED = 200  # characters of a server's answer in a message


class AnswerError(UserError):
    """A request that was not answered; `kind` names the failure in a few words, for counting.

    Attributes:
        status: of the HTTP response; None where there was none.
    """

    def __init__(self, kind: str, *, status: int | None = None, **details: Any) -> None:
        self.kind, self.status = kind, status
        super().__init__(kind, **details)


@dataclass(frozen=True)
class Answer:
    """One choice; times in seconds since the request was sent.

    Attributes:
        chunks: (when it came, its text), empty texts left out; one chunk if it came whole.
        usage: token counts as the server tells them; None where it does not.
        logprobs: as in the protocol; the chunks' lists put together.
    """

    text: str
    chunks: tuple[tuple[float, str], ...]
    total_s: float
    usage: Mapping[str, Any] | None
    finish_reason: str | None
    logprobs: Mapping[str, Any] | None

    @property
    def ttft_s(self) -> float | None:
        """When the first text came."""
        return self.chunks[0][0] if self.chunks else None

    @property
    def last_s(self) -> float | None:
        """When the last text came."""
        return self.chunks[-1][0] if self.chunks else None

    @property
    def num_tokens(self) -> int | None:
        """Output tokens by the server's own count."""
        count = (self.usage or {}).get("completion_tokens")
        return count if isinstance(count, int) else None


class OpenAIClient:
    """A server at `base_url` (up to and with `/v1`) and one of its models.

    The key, if there is one in the environment (`OPENAI_API_KEY`), goes with every request. Safe to
    use from several threads; connections end with the object. `timeout_s` is the longest silence of
    the server, not of an answer.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        timeout_s: float = 600.0,
        transport: Any = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.name = base_url if model is None else f"{base_url}#{model}"
        self._http = _http(self.base_url, timeout_s, transport)
        weakref.finalize(self, self._http.close)
        self.model = model or self._first_model()

    def ask(self, api: Api, body: Mapping[str, Any]) -> Answer:
        """Send a request for one choice and take its answer, streamed or whole.

        Args:
            body: without the model, which is added.

        Raises:
            AnswerError: not answered: no connection, time over, another status than 200, an error
                in the stream, a stream that broke off, or another protocol.
        """
        import httpx

        try:
            return self._ask(api, {"model": self.model, **body})
        except httpx.TimeoutException:
            raise AnswerError("time over", where=self.name, mend="give it more time") from None
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def card(self) -> dict[str, Any]:
        """The model's entry in /v1/models; empty where there is none."""
        found = [card for card in self._models() if card.get("id") == self.model]
        return dict(found[0]) if found else {}

    def metrics(self) -> str | None:
        """What the server's /metrics tells, in Prometheus' text form; None if it has none."""
        import httpx

        try:
            response = self._http.get(f"{self.base_url.removesuffix('/v1')}/metrics")
        except httpx.HTTPError:
            return None
        return str(response.text) if response.status_code == 200 else None

    def _ask(self, api: Api, body: dict[str, Any]) -> Answer:
        start = time.perf_counter()
        with self._http.stream("POST", api, json=body) as response:
            if response.status_code != 200:
                response.read()
                raise self._refused(response.status_code, response.text)
            collected = _Collected(start)
            if "text/event-stream" in response.headers.get("content-type", ""):
                self._read_stream(response.iter_lines(), collected)
            else:
                response.read()
                self._take(response.text, collected)
                collected.is_ended = True
        if not collected.has_choice:
            raise self._strange("no choice in the answer")
        if not collected.is_ended:
            raise AnswerError("the stream broke off", where=self.name)
        return collected.answer(time.perf_counter() - start)

    def _read_stream(self, lines: Iterable[str], collected: _Collected) -> None:
        for line in lines:
            data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if data == "[DONE]":
                collected.is_ended = True
            elif data:
                self._take(data, collected)

    def _take(self, text: str, collected: _Collected) -> None:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise self._strange(text) from None
        if not isinstance(data, dict):
            raise self._strange(text)
        if data.get("error"):
            raise AnswerError("error in the answer", where=self.name, found=str(data)[:_QUOTED])
        try:
            collected.add(data)
        except (AttributeError, KeyError, IndexError, TypeError):
            raise self._strange(text) from None

    def _models(self) -> list[dict[str, Any]]:
        import httpx

        try:
            data = self._http.get("models").json()["data"]
            return [card for card in data if isinstance(card, dict)]
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        except (ValueError, KeyError, TypeError):
            return []

    def _first_model(self) -> str:
        for card in self._models():
            if "id" in card:
                return str(card["id"])
        mend = f"name the model: URL#MODEL; a server that wants a key takes it from {API_KEY}"
        raise UserError("/v1/models names no model", where=self.name, mend=mend)

    def _refused(self, status: int, text: str) -> AnswerError:
        mends = {
            401: f"set {API_KEY} to the server's key",
            404: f"check the address and the model's name, here {self.model!r}: URL#MODEL",
        }
        return AnswerError(
            f"status {status}",
            status=status,
            where=self.name,
            found=text[:_QUOTED],
            mend=mends.get(status),
        )

    def _strange(self, text: str) -> AnswerError:
        return AnswerError(
            "does not answer as OpenAI's API does", where=self.name, found=text[:_QUOTED]
        )

    def _unreachable(self, error: Exception) -> AnswerError:
        reason = str(error) or type(error).__name__
        mend = "start the server, or mend the address: http://host:port/v1"
        return AnswerError(f"cannot be reached: {reason}", where=self.name, mend=mend)


@dataclass
class _Collected:
    """An answer that grows chunk by chunk."""

    start: float
    chunks: list[tuple[float, str]] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] = field(default_factory=dict)
    has_choice: bool = False
    is_ended: bool = False

    def add(self, data: Mapping[str, Any]) -> None:
        self.usage = data.get("usage") or self.usage
        for choice in data.get("choices") or ():
            self.has_choice = True
            content = choice.get("delta") or choice.get("message") or choice
            if text := content.get("text") or content.get("content"):
                self.chunks.append((time.perf_counter() - self.start, str(text)))
            for name, value in (choice.get("logprobs") or {}).items():
                if isinstance(value, list):
                    self.logprobs[name] = [*self.logprobs.get(name, []), *value]
            if choice.get("finish_reason"):
                self.finish_reason, self.is_ended = choice["finish_reason"], True

    def answer(self, total_s: float) -> Answer:
        text = "".join(text for _, text in self.chunks)
        chunks = tuple(self.chunks)
        return Answer(text, chunks, total_s, self.usage, self.finish_reason, self.logprobs or None)


def request_of(prompt: Any, options: Mapping[str, Any]) -> tuple[Api, dict[str, Any]]:
    """Where a prompt goes and the body that asks for its continuation.

    Args:
        prompt: text or token ids for /v1/completions, a conversation for /v1/chat/completions.
        options: of the protocol or of `Session.request`; `max_new_tokens` becomes `max_tokens`.
    """
    fields = {name: value for name, value in options.items() if value is not None}
    if "max_new_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_new_tokens")
    if is_conversation(prompt):
        return "chat/completions", {"messages": [dict(turn) for turn in prompt], **fields}
    text = prompt if isinstance(prompt, str) else list(prompt)
    return "completions", {"prompt": text, **fields}


def is_conversation(prompt: Any) -> bool:
    """Whether a prompt is a list of messages."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def extra_fields(text: str | None) -> dict[str, Any]:
    """Fields that a user adds to every request, from a JSON object.

    Raises:
        UserError: something else.
    """
    try:
        data = json.loads(text) if text else {}
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise UserError(
            "not fields of a request",
            found=text,
            expected='a JSON object, such as {"speculate": false}',
        )
    return data


def _http(base_url: str, timeout_s: float, transport: Any) -> Any:
    try:
        import httpx
    except ImportError:
        raise DependencyError(
            "endpoints need httpx", mend="pip install 'neuron-spec[evaluate]'"
        ) from None
    key = os.environ.get(API_KEY)
    try:
        return httpx.Client(
            base_url=f"{base_url}/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout_s,
            transport=transport,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
    except httpx.InvalidURL as error:
        raise UserError(f"not an address: {error}", where=base_url) from None
