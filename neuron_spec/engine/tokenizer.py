"""Text to ids and back, through the target's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.engine.pieces import byte_level_bytes, sentencepiece_bytes
from neuron_spec.errors import RequestError

Message = dict[str, str]
"""One turn of a conversation: `role` and `content`."""

Prompt = str | Sequence[int] | Sequence[Message]
"""Plain text, token ids, or a conversation for the chat template."""


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end an output."""

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids of a prompt in any of its forms."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one token, which may be a part of a character."""

    def vocabulary(self) -> list[bytes]:
        """What every id of the model adds to an output's text; nothing for special tokens and ids
        beyond the tokenizer's."""


class Codec(Protocol):
    """How a model's directory says that text is encoded; for several threads at once."""

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be encoded."""

    @property
    def num_tokens(self) -> int:
        """Ids that stand for something, added tokens included."""

    @property
    def added(self) -> Mapping[int, str]:
        """Tokens beside the pieces of the vocabulary."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends an output."""

    @property
    def is_byte_level(self) -> bool:
        """Whether pieces are written in the byte alphabet."""

    def encode(self, text: str) -> Sequence[int]:
        """Ids of a text, with the tokens that the model wants around it."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Ids of a conversation in its template; nothing is added to what the template writes."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""

    def pieces(self, token_ids: Sequence[int]) -> list[str | None]:
        """As the vocabulary writes them; None for ids beyond the tokenizer's."""


class ModelTokenizer:
    """The tokenizer stored beside a model's weights."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make_ready(self) -> None:
        """Read it if that is quickly done, so that the first text finds it there; what is wrong
        with it is told then. For a thread beside the one that loads the weights."""
        with suppress(Exception):
            import_module("torch")  # leaves no other thread any time; reading weights does
            _ = self._plain

    @cached_property
    def _plain(self) -> Codec | None:
        from neuron_spec.engine.plain_tokenizer import open_plain

        return open_plain(self._directory)

    @cached_property
    def _codec(self) -> Codec:
        if self._plain is not None:
            return self._plain
        from neuron_spec.engine.transformers_tokenizer import TransformersTokenizer

        return TransformersTokenizer(self._directory)

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The model's end-of-sequence ids, or the tokenizer's where the config has none."""
        configured = read_config(self._directory).eos_token_ids
        if configured:
            return frozenset(configured)
        eos = self._codec.eos_token_id
        return frozenset() if eos is None else frozenset({eos})

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids of a prompt; a conversation goes through the chat template, once.

        Raises:
            RequestError: a conversation and no chat template, or one that refuses it.
        """
        if isinstance(prompt, str):
            check_text(prompt, "prompt")
            return tuple(self._codec.encode(prompt))
        parts = list(prompt)
        if parts and isinstance(parts[0], dict):
            return self._encode_chat(parts)
        return self._checked_ids(parts)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        return self._codec.decode(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one token; an added or special token is its own name."""
        if (added := self._codec.added.get(token_id)) is not None:
            return added.encode("utf-8", "replace")
        (piece,) = self._codec.pieces([token_id])
        # None beyond the tokenizer's ids, as in a padded embedding.
        return b"" if piece is None else self._piece_bytes(piece)

    def vocabulary(self) -> list[bytes]:
        """See `Tokenizer.vocabulary`."""
        size = read_config(self._directory).vocab_size
        known = min(size, self._codec.num_tokens)
        pieces, special = self._codec.pieces(range(known)), self._codec.special_ids
        added = self._codec.added
        return [
            b""
            if token_id in special or piece is None
            else (
                added[token_id].encode("utf-8", "replace")
                if token_id in added
                else self._piece_bytes(piece)
            )
            for token_id, piece in enumerate(pieces)
        ] + [b""] * (size - known)

    @property
    def _piece_bytes(self) -> Callable[[str], bytes]:
        return byte_level_bytes if self._codec.is_byte_level else sentencepiece_bytes

    def _checked_ids(self, ids: list[Any]) -> tuple[int, ...]:
        size = read_config(self._directory).vocab_size
        for token in ids:
            if type(token) is not int or not 0 <= token < size:
                raise RequestError(
                    "not a token id", field="prompt", found=token, expected=f"0 … {size - 1}"
                )
        return tuple(ids)

    def _encode_chat(self, messages: list[Any]) -> tuple[int, ...]:
        if not self._codec.has_chat_template:
            raise RequestError(
                "the target's tokenizer has no chat template",
                field="messages",
                mend="send a plain prompt, or add chat_template.jinja beside the target's weights",
            )
        values = [value for turn in messages if isinstance(turn, dict) for value in turn.values()]
        check_text("".join(map(str, values)), "messages")
        return tuple(self._codec.encode_chat(messages))


def check_text(text: str, field: str) -> None:
    """Half a character (from a JSON escape or a terminal's bytes) is refused by every tokenizer."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("not Unicode text", field=field, found=repr(error.object)) from None
