"""A tokenizer as transformers makes it: slow to import, right for every family."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from neuron_spec.engine.chat_template import refusals
from neuron_spec.errors import CheckpointError


class TransformersTokenizer:
    """Two instances of what `AutoTokenizer` makes of a directory, each loaded at first use.

    Fast tokenizers refuse to be used by two threads at once, and a prompt of megabytes, which takes
    seconds, must not hold up others' outputs: prompts have an instance of their own.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock, self._prompt_lock = threading.Lock(), threading.Lock()

    @cached_property
    def _tokenizer(self) -> Any:
        return self._loaded()

    @cached_property
    def _prompt_tokenizer(self) -> Any:
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

    @property
    def has_chat_template(self) -> bool:
        """See `Codec`."""
        return self._prompt_tokenizer.chat_template is not None

    def encode(self, text: str) -> Sequence[int]:
        """See `Codec`."""
        tokenizer = self._prompt_tokenizer
        with self._prompt_lock:
            ids: list[int] = tokenizer(text)["input_ids"]
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """See `Codec`."""
        tokenizer = self._prompt_tokenizer
        with self._prompt_lock, refusals():
            ids: list[int] = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Codec`."""
        tokenizer = self._tokenizer
        with self._lock:
            return str(
                tokenizer.decode(
                    list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
            )

    def pieces(self, token_ids: Sequence[int]) -> list[str | None]:
        """See `Codec`."""
        tokenizer = self._tokenizer
        with self._lock:
            found = tokenizer.convert_ids_to_tokens(list(token_ids))
        return [None if piece is None else str(piece) for piece in found]

    @cached_property
    def num_tokens(self) -> int:
        """See `Codec`."""
        return len(self._tokenizer)

    @cached_property
    def added(self) -> Mapping[int, str]:
        """See `Codec`."""
        tokenizer = self._tokenizer
        with self._lock:
            return {token_id: text for text, token_id in tokenizer.get_added_vocab().items()}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """See `Codec`."""
        tokenizer = self._tokenizer
        with self._lock:
            marked = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
            return frozenset(marked.union(tokenizer.all_special_ids))

    @property
    def eos_token_id(self) -> int | None:
        """See `Codec`."""
        eos = self._tokenizer.eos_token_id
        return None if eos is None else int(eos)

    @cached_property
    def is_byte_level(self) -> bool:
        """See `Codec`."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        return "ByteLevel" in repr(getattr(backend, "decoder", None))
