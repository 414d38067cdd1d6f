"""JSON Schema -> a compiled grammar over one model's tokens, through xgrammar."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from neuron_spec.errors import RequestError
from neuron_spec.grammars.base import Grammar
from neuron_spec.grammars.response_format import FIELD, SCHEMA_FIELD
from neuron_spec.grammars.schema import MAX_CHARACTERS

if TYPE_CHECKING:
    from torch import Tensor

COMPILE_TIMEOUT_S = 10.0
MAX_COMPILES = 2
"""At once; those that ran out of time and cannot be ended count too."""
CACHE_BYTES = 256 * 2**20
MAX_WHITESPACE = 16
"""Spaces and line ends in a row between the parts of JSON: enough for indented output, and no model
can go on with them forever."""

_NOT_IN_JSON = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")
"""JSON has no bare control characters but line ends and tabs between its parts. xgrammar lets them
into strings with a minLength or maxLength; no token with one is ever needed."""
_SOURCE = re.compile(r"^\[[\d:]+\] \S+: ")  # time and place in xgrammar's own source


class Tokens(Protocol):
    """A model's tokens, as its tokenizer knows them."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end an output."""

    def vocabulary(self) -> list[bytes]:
        """The bytes that every id adds to the text; none for ids that must not come."""


class SchemaCompiler:
    """Compiles schemas for one vocabulary; the last ones used stay compiled. For many threads."""

    def __init__(self, tokens: Tokens, *, timeout_s: float = COMPILE_TIMEOUT_S) -> None:
        """Asks `tokens` at the first schema."""
        self._tokens, self._timeout_s = tokens, timeout_s
        self._lock, self._free = threading.Lock(), threading.BoundedSemaphore(MAX_COMPILES)
        self._compiler: Any = None
        self._vocab_size = 0

    def compile(self, schema: str) -> Grammar:
        """The grammar of JSON text that is valid under a schema.

        Args:
            schema: as `schema_of` gives it.

        Raises:
            RequestError: xgrammar is not installed, the model has no end-of-sequence token, or the
                schema has no grammar, is too large or takes too long.
        """
        if len(schema) > MAX_CHARACTERS:
            raise RequestError(
                "too large",
                field=SCHEMA_FIELD,
                found=f"{len(schema)} characters",
                expected=f"at most {MAX_CHARACTERS}",
            )
        compiler = self._ready()
        outcome = self._in_time(lambda: _compiled(compiler, schema))
        if isinstance(outcome, Exception):
            reason = _SOURCE.sub("", str(outcome)).strip() or "xgrammar refuses it without a reason"
            raise RequestError(f"no grammar: {reason}", field=SCHEMA_FIELD) from outcome
        return _SchemaGrammar(outcome, self._vocab_size)

    def _ready(self) -> Any:
        """xgrammar's compiler, which is made once."""
        with self._lock:
            if self._compiler is None:
                self._compiler = self._made()
            return self._compiler

    def _made(self) -> Any:
        if find_spec("xgrammar") is None:
            raise RequestError(
                "xgrammar is not installed",
                field=FIELD,
                mend="pip install 'neuron-spec[structured]'",
            )
        import xgrammar

        end_ids = self._tokens.stop_token_ids
        if not end_ids:
            raise RequestError(
                "the model has no end-of-sequence token to end a grammar with", field=FIELD
            )
        vocabulary = [_in_json(piece) for piece in self._tokens.vocabulary()]
        self._vocab_size = len(vocabulary)
        info = xgrammar.TokenizerInfo(
            vocabulary, xgrammar.VocabType.RAW, stop_token_ids=sorted(end_ids)
        )
        return xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)

    def _in_time(self, work: Callable[[], Any]) -> Any:
        """What `work` returns or raises, from a thread that is left behind if it takes too long."""
        outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def run() -> None:
            try:
                outcomes.put(work())
            except Exception as error:
                outcomes.put(error)
            finally:
                self._free.release()

        if not self._free.acquire(timeout=self._timeout_s):
            raise self._too_long("other schemas are being compiled")
        threading.Thread(target=run, name="neuron-spec-schema", daemon=True).start()
        try:
            return outcomes.get(timeout=self._timeout_s)
        except queue.Empty:
            raise self._too_long("the schema takes too long to compile") from None

    def _too_long(self, problem: str) -> RequestError:
        return RequestError(
            problem,
            field=SCHEMA_FIELD,
            expected=f"at most {self._timeout_s:g} s",
            mend="use fewer alternatives and properties",
        )


def _in_json(piece: bytes) -> bytes:
    """A token's bytes; none for one that must not come."""
    return b"" if _NOT_IN_JSON.search(piece) else piece


def _compiled(compiler: Any, schema: str) -> Any:
    return compiler.compile_json_schema(
        schema, any_whitespace=True, max_whitespace_cnt=MAX_WHITESPACE, strict_mode=True
    )


class _SchemaGrammar:
    """See `Grammar`."""

    def __init__(self, compiled: Any, vocab_size: int) -> None:
        self._compiled, self._vocab_size = compiled, vocab_size

    def begin(self) -> _SchemaMatcher:
        """See `Grammar.begin`."""
        return _SchemaMatcher(self._compiled, self._vocab_size)


class _SchemaMatcher:
    """See `Matcher`."""

    def __init__(self, compiled: Any, vocab_size: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._vocab_size = vocab_size
        self._bits = xgrammar.allocate_token_bitmask(1, vocab_size)  # [1, words] int32

    @property
    def is_ended(self) -> bool:
        """See `Matcher.is_ended`."""
        return bool(self._matcher.is_terminated())

    def accept(self, token: int) -> bool:
        """See `Matcher.accept`."""
        return bool(self._matcher.accept_token(token))

    def rollback(self, num_tokens: int) -> None:
        """See `Matcher.rollback`."""
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def allowed(self) -> Tensor:
        """See `Matcher.allowed`."""
        self._matcher.fill_next_token_bitmask(self._bits)
        return _unpacked(self._bits[0])[: self._vocab_size]


def _unpacked(words: Tensor) -> Tensor:
    """[32 · words] bool of [words] int32, lowest bit first."""
    import numpy as np
    import torch

    bits = np.unpackbits(words.numpy().view(np.uint8), bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))  # the same memory, without torch's threads
