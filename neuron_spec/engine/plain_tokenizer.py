"""A tokenizer that is what its `tokenizer.json` says, and no more: transformers is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Pipeline

from neuron_spec.checkpoints.json_files import read_json
from neuron_spec.engine.chat_template import ChatTemplate, read_chat_templates
from neuron_spec.engine.tokenizer_settings import named_tokens

# Whether a template sees these depends on the version of transformers.
_UNSETTLED_VARIABLES = ("additional_special_tokens", "extra_special_tokens")


class PlainTokenizer:
    """The tokenizers library's own pipeline; it is never changed, so that threads may share it."""

    def __init__(
        self, pipeline: Pipeline, named: Mapping[str, str], template: ChatTemplate | None
    ) -> None:
        """`named`: special tokens by their use, such as `eos_token`."""
        pipeline.no_truncation()
        pipeline.no_padding()
        self._pipeline, self._named, self._template = pipeline, named, template

    @property
    def has_chat_template(self) -> bool:
        """See `Codec`."""
        return self._template is not None

    def encode(self, text: str) -> Sequence[int]:
        """See `Codec`."""
        return self._ids(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """See `Codec`."""
        assert self._template is not None
        return self._ids(self._template.render(messages), add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # As a batch: other threads run meanwhile.
        (encoding,) = self._pipeline.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Codec`."""
        return str(self._pipeline.decode(list(token_ids), skip_special_tokens=True))

    def pieces(self, token_ids: Sequence[int]) -> list[str | None]:
        """See `Codec`."""
        return [self._pipeline.id_to_token(token_id) for token_id in token_ids]

    @cached_property
    def num_tokens(self) -> int:
        """See `Codec`."""
        return int(self._pipeline.get_vocab_size(with_added_tokens=True))

    @cached_property
    def added(self) -> Mapping[int, str]:
        """See `Codec`."""
        return {i: token.content for i, token in self._pipeline.get_added_tokens_decoder().items()}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """See `Codec`."""
        decoder = self._pipeline.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in decoder.items() if token.special)

    @cached_property
    def eos_token_id(self) -> int | None:
        """See `Codec`."""
        eos = self._named.get("eos_token")
        return None if eos is None else int(self._pipeline.token_to_id(eos))

    @cached_property
    def is_byte_level(self) -> bool:
        """See `Codec`."""
        return "ByteLevel" in repr(self._pipeline.decoder)


def open_plain(directory: Path) -> PlainTokenizer | None:
    """The tokenizer of a model's directory; None where only transformers knows what it does, or
    knows how to tell what is wrong with it."""
    try:
        settings = read_json(directory / "tokenizer_config.json")
        pipeline = Pipeline.from_file(str(directory / "tokenizer.json"))
        named = named_tokens(directory, settings, pipeline)
        templates = read_chat_templates(directory, settings)
        source = templates["default"] if templates else None
    except Exception:  # the tokenizers library raises no narrower kind
        return None
    if named is None or any(name in (source or "") for name in _UNSETTLED_VARIABLES):
        return None
    template = None if source is None else ChatTemplate(source, named)
    return PlainTokenizer(pipeline, named, template)
