"""Text to ids and back, through the target's own tokenizer and chat template."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.engine.pieces import byte_level_bytes, sentencepiece_bytes
from neuron_spec.errors import CheckpointError, RequestError

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


class ModelTokenizer:
    """The tokenizer stored beside a model's weights."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Fast tokenizers refuse to be used by two threads at once.
        self._lock, self._prompt_lock = threading.Lock(), threading.Lock()

    @cached_property
    def _tokenizer(self) -> Any:
        return self._loaded()

    @cached_property
    def _prompt_tokenizer(self) -> Any:
        """One more: a prompt of megabytes takes seconds, and must not hold up others' outputs."""
        return self._loaded()

    def _loaded(self) -> Any:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(str(self._directory), trust_remote_code=False)
        except Exception as error:  # which, depends on what else is installed
            raise CheckpointError(
                f"no usable tokenizer: {(str(error) or repr(error)).splitlines()[0]}",
                where=self._directory,
                expected="tokenizer.json (or the family's own tokenizer files)",
                mend="copy the tokenizer files of the target beside its weights",
            ) from error

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The model's end-of-sequence ids, or the tokenizer's where the config has none."""
        configured = read_config(self._directory).eos_token_ids
        if configured:
            return frozenset(configured)
        eos = self._tokenizer.eos_token_id
        return frozenset() if eos is None else frozenset({int(eos)})

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids of a prompt; a conversation goes through the chat template, once.

        Raises:
            RequestError: a conversation and no chat template, or one that refuses it.
        """
        if isinstance(prompt, str):
            check_text(prompt, "prompt")
            with self._prompt_lock:
                return tuple(self._prompt_tokenizer(prompt)["input_ids"])
        parts = list(prompt)
        if parts and isinstance(parts[0], dict):
            return self._encode_chat(parts)
        return self._checked_ids(parts)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        with self._lock:
            return str(
                self._tokenizer.decode(
                    list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
            )

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one token; an added or special token is its own name."""
        if (added := self._added_tokens.get(token_id)) is not None:
            return added.encode("utf-8", "replace")
        with self._lock:
            piece = self._tokenizer.convert_ids_to_tokens(token_id)
        # None beyond the tokenizer's ids, as in a padded embedding.
        return b"" if piece is None else self._piece_bytes(str(piece))

    def vocabulary(self) -> list[bytes]:
        """See `Tokenizer.vocabulary`."""
        size = read_config(self._directory).vocab_size
        with self._lock:
            known = min(size, len(self._tokenizer))
            pieces = self._tokenizer.convert_ids_to_tokens(list(range(known)))
            named = set(self._tokenizer.all_special_ids)
            decoder = self._tokenizer.added_tokens_decoder
        special = named | {token_id for token_id, added in decoder.items() if added.special}
        added = self._added_tokens
        return [
            b""
            if token_id in special or piece is None
            else (
                added[token_id].encode("utf-8", "replace")
                if token_id in added
                else self._piece_bytes(str(piece))
            )
            for token_id, piece in enumerate(pieces)
        ] + [b""] * (size - known)

    @cached_property
    def _added_tokens(self) -> dict[int, str]:
        with self._lock:
            added = self._tokenizer.get_added_vocab()
        return {token_id: text for text, token_id in added.items()}

    @cached_property
    def _piece_bytes(self) -> Callable[[str], bytes]:
        decoder = getattr(getattr(self._tokenizer, "backend_tokenizer", None), "decoder", None)
        return byte_level_bytes if "ByteLevel" in repr(decoder) else sentencepiece_bytes

    def _checked_ids(self, ids: list[Any]) -> tuple[int, ...]:
        size = read_config(self._directory).vocab_size
        for token in ids:
            if type(token) is not int or not 0 <= token < size:
                raise RequestError(
                    "not a token id", field="prompt", found=token, expected=f"0 … {size - 1}"
                )
        return tuple(ids)

    def _encode_chat(self, messages: list[Any]) -> tuple[int, ...]:
        import jinja2

        if self._prompt_tokenizer.chat_template is None:
            raise RequestError(
                "the target's tokenizer has no chat template",
                field="messages",
                mend="send a plain prompt, or add chat_template.jinja beside the target's weights",
            )
        values = [value for turn in messages if isinstance(turn, dict) for value in turn.values()]
        check_text("".join(map(str, values)), "messages")
        try:
            with self._prompt_lock:
                ids = self._prompt_tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=True, return_dict=False
                )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise RequestError(
                f"the chat template refuses it: {error}", field="messages"
            ) from error
        return tuple(ids)


def check_text(text: str, field: str) -> None:
    """Half a character (from a JSON escape or a terminal's bytes) is refused by every tokenizer."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("not Unicode text", field=field, found=repr(error.object)) from None
