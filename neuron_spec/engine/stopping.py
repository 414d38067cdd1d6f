"""Where an output ends: stop tokens, stop strings and the limit, also inside an accepted block.

Also turns tokens into text as they come: an incomplete character or a possible beginning of a stop
string is held back until the next token settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neuron_spec.engine.events import FinishReason

Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"  # how a decoder shows bytes that do not form a character yet


class TextStream:
    """Incremental detokenizer: pushes tokens in, complete text out."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._context_start = 0  # decoded again as context, so that joints come out right
        self._shown_end = 0

    def push(self, token: int) -> str:
        """The text that `token` completes."""
        self._tokens.append(token)
        added = self._added()
        if not added or added.endswith(_INCOMPLETE):
            return ""
        self._context_start, self._shown_end = self._shown_end, len(self._tokens)
        return added

    def flush(self) -> str:
        """What is left, complete or not."""
        added = self._added()
        self._context_start = self._shown_end = len(self._tokens)
        return added

    def _added(self) -> str:
        shown = self._decode(self._tokens[self._context_start : self._shown_end])
        return self._decode(self._tokens[self._context_start :])[len(shown) :]


class OutputCutter:
    """Takes committed tokens one by one and says when the output is complete."""

    def __init__(
        self,
        decode: Decode,
        *,
        limit: int,
        stop: Sequence[str] = (),
        stop_token_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
    ) -> None:
        """Stop strings are looked for in the text after the first `min_tokens` tokens."""
        self._stream = TextStream(decode)
        self._min_tokens = min_tokens
        self._limit, self._stop, self._stop_token_ids = limit, tuple(stop), stop_token_ids
        self._held = ""
        self._num_released = 0
        self.num_tokens = 0
        self.reason: FinishReason | None = "length" if limit == 0 else None

    @property
    def num_characters(self) -> int:
        """Length of the text so far, what is held back included, an incomplete character not."""
        return self._num_released + len(self._held)

    def push(self, token: int) -> str:
        """Count one token; return the text that is now certain to be part of the output."""
        self.num_tokens += 1
        if token in self._stop_token_ids:
            self.reason = "stop"
            return ""
        self._held += self._stream.push(token)
        is_free = self.num_tokens <= self._min_tokens
        if not is_free and (cut := self._find_stop()) is not None:
            return self._end_at(cut)
        if self.num_tokens >= self._limit:
            self.reason = "length"
        return self._release(len(self._held) if is_free else self._num_certain())

    def finish(self) -> str:
        """What was held back, once it is clear that nothing more comes."""
        self._held += self._stream.flush()
        is_free = self.num_tokens <= self._min_tokens
        if (
            not is_free and (cut := self._find_stop()) is not None
        ):  # completed by the flushed characters
            return self._end_at(cut)
        return self._release(len(self._held))

    def _find_stop(self) -> int | None:
        found = [index for text in self._stop if (index := self._held.find(text)) >= 0]
        return min(found) if found else None

    def _end_at(self, cut: int) -> str:
        text, self._held = self._held[:cut], ""
        self._stream = TextStream(lambda tokens: "")
        self.reason = "stop"
        return text

    def _num_certain(self) -> int:
        """Characters that cannot be the beginning of a stop string."""
        longest = max((len(text) for text in self._stop), default=0)
        for size in range(min(longest - 1, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(text.startswith(tail) for text in self._stop):
                return len(self._held) - size
        return len(self._held)

    def _release(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        self._num_released += len(text)
        return text
