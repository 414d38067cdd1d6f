"""Prompt in, text and acceptance out: what `neuron_spec.load` returns."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Thread
from typing import Any

from neuron_spec.artifacts import Artifact, open_artifact
from neuron_spec.backends import get_backend
from neuron_spec.backends.base import PrefixCachingSpeculator, Speculator, TokenLogprobs
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import Event, FinishEvent, FinishReason, Timing, TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request, check_has_grammars, check_token_ids
from neuron_spec.engine.tokenizer import ModelTokenizer, Prompt, Tokenizer
from neuron_spec.errors import RequestError, nearest
from neuron_spec.grammars import Grammar, SchemaCompiler, schema_of
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.sampling_params import SamplingParams


@dataclass(frozen=True)
class Generation:
    """One finished output.

    Attributes:
        text: the output; stop strings and special tokens are not in it.
        token_ids: every output token, an end-of-sequence id included.
        logprobs: of every output token; None unless asked for.
        acceptance: counts over its verification steps.
    """

    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    finish_reason: FinishReason
    acceptance: AcceptanceCounts
    timing: Timing
    logprobs: tuple[TokenLogprobs, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_output_tokens": len(self.token_ids),
            "finish_reason": self.finish_reason,
            "acceptance": self.acceptance.as_dict(),
            "ttft_s": self.timing.ttft_s,
            "tpot_s": self.timing.tpot_s(len(self.token_ids)),
            "total_s": self.timing.total_s,
        }


class Session:
    """A loaded artifact, ready to generate. Not for several threads at once."""

    def __init__(
        self,
        speculator: Speculator,
        tokenizer: Tokenizer,
        *,
        draft_length: DraftLength | None = None,
    ) -> None:
        """Without `draft_length` every step drafts as much as the artifact allows."""
        self.speculator, self.tokenizer = speculator, tokenizer
        largest = DraftLength.constant(speculator.limits.num_draft_tokens)
        self.draft_length = draft_length or largest
        self._schemas = SchemaCompiler(tokenizer)

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Continue one prompt; options as in `stream`."""
        return self.generate_many([prompt], **options)[0]

    def generate_many(
        self, prompts: Sequence[Prompt], *, speculate: bool = True, **options: Any
    ) -> list[Generation]:
        """Continue several prompts, side by side as far as the artifact's batch allows.

        Returns:
            Generations in the order of the prompts; options as in `stream`.
        """
        loop = self.loop(speculate=speculate)
        requests = [self.request(prompt, **options) for prompt in prompts]
        collected = {loop.submit(request): _Collected(request) for request in requests}
        try:
            for event in loop.run():
                collected[event.request_id].add(event)
        finally:
            loop.close()
        return [entry.generation() for entry in collected.values()]

    def stream(self, prompt: Prompt, *, speculate: bool = True, **options: Any) -> Iterator[Event]:
        """Continue one prompt, event by event.

        Args:
            prompt: text, token ids, or messages for the chat template.
            speculate: False decodes with the target alone.
            options: `max_new_tokens` (int or None), `stop` (strings), `stop_token_ids` (beside
                the model's own), `ignore_eos` (bool: not the model's own),
                `logprobs` (0 … 20, how many of the likeliest ids are told), `response_format` (the
                OpenAI API's: the output is JSON, under a schema if it has one), and the fields of
                `SamplingParams`: `temperature`, `top_k`, `top_p`, `seed`, …

        Raises:
            RequestError: the prompt or an option cannot be honoured; the field is named.
        """
        loop = self.loop(speculate=speculate)
        loop.submit(self.request(prompt, **options))
        try:
            yield from loop.run()
        finally:
            loop.close()

    def cache_prefixes(self, max_bytes: int) -> None:
        """Keep the beginnings of prompts, so that those which begin the same start sooner with the
        same results; 0 keeps nothing. Without effect where the backend cannot."""
        if isinstance(self.speculator, PrefixCachingSpeculator):
            self.speculator.cache_prefixes(max_bytes)

    def loop(self, *, speculate: bool = True) -> DecodeLoop:
        """A decode loop over this session's slots; use one at a time."""
        draft_length = self.draft_length if speculate else DraftLength()
        return DecodeLoop(self.speculator, self.tokenizer.decode, draft_length=draft_length)

    def request(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_token_ids: Iterable[int] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> Request:
        """Tokenize a prompt and gather its limits and sampling options.

        Raises:
            RequestError: an option out of range, or unknown.
        """
        stop_token_ids = frozenset(stop_token_ids)
        check_token_ids("stop_token_ids", stop_token_ids, self.speculator.limits.vocab_size)
        end_ids = frozenset() if ignore_eos else self.tokenizer.stop_token_ids
        grammar = self._grammar(response_format)
        if grammar is not None and ignore_eos:
            raise RequestError("an output with a response format has an end", field="ignore_eos")
        return Request(
            prompt_ids=self.tokenizer.encode(prompt),
            max_new_tokens=max_new_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=stop_token_ids | end_ids,
            sampling=_sampling(sampling),
            num_logprobs=logprobs,
            grammar=grammar,
        )

    def _grammar(self, response_format: Mapping[str, Any] | None) -> Grammar | None:
        schema = schema_of(response_format)
        if schema is None:
            return None
        check_has_grammars(self.speculator.limits)
        return self._schemas.compile(schema)


def _sampling(options: dict[str, Any]) -> SamplingParams:
    known = [field.name for field in fields(SamplingParams)]
    for name in options:
        if name not in known:
            raise RequestError("no such option", field=name, mend=nearest(name, known))
    return SamplingParams(**options)


class _Collected:
    """Events of one request, gathered into a `Generation`."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._finish: FinishEvent | None = None

    def add(self, event: Event) -> None:
        self._texts.append(event.text)
        if isinstance(event, TokenEvent):
            self._token_ids.append(event.token_id)
            if event.logprobs is not None:
                self._logprobs.append(event.logprobs)
        else:
            self._finish = event

    def generation(self) -> Generation:
        finish = self._finish
        if finish is None:
            raise RuntimeError("the request has not finished")
        return Generation(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            num_prompt_tokens=len(self._request.prompt_ids),
            finish_reason=finish.reason,
            acceptance=finish.acceptance,
            timing=finish.timing,
            logprobs=None if self._request.num_logprobs is None else tuple(self._logprobs),
        )


def load(path: str | Path, *, full_check: bool = False) -> Session:
    """Open an artifact for generation.

    Args:
        path: what `compile_model` or `neuron-spec compile` wrote.
        full_check: compute all digests again, whatever the files' times say.

    Raises:
        ArtifactError: not an artifact, or its files or weights are not as they were compiled.
    """
    return open_session(open_artifact(path, full=full_check))


def open_session(artifact: Artifact) -> Session:
    """A session on an artifact that is already open."""
    tokenizer = ModelTokenizer(artifact.model_directory("target"))
    reading = Thread(target=tokenizer.make_ready, daemon=True)
    with _without_collection():
        reading.start()
        speculator = get_backend(artifact.manifest.backend).open(artifact)
        reading.join()
    spec = artifact.spec
    draft_length = DraftLength.by_load(spec.draft.by_load, spec.num_draft_tokens)
    return Session(speculator, tokenizer, draft_length=draft_length)


@contextmanager
def _without_collection() -> Iterator[None]:
    """What is imported and loaded stays: Python's collector would look through all of it again and
    again, for a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
