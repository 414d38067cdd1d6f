"""What text every token id of a tokenizer stands for, and which ids of two tokenizers are the same.

Tokenizers write the same text differently: byte-level ones map every byte to a printable character
(`Ġthe`), SentencePiece ones write a space as `▁` and single bytes as `<0x0A>`. A piece is the bytes
meant, or the string of a special token, which stands for no text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.contradictions.vocabulary import read_vocabulary
from neuron_spec.checkpoints.json_files import MAX_TOKENIZER_BYTES, read_json
from neuron_spec.errors import CheckpointError, shown

Piece = bytes | str
TOKENIZER = "tokenizer.json"
_SENTENCEPIECE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_COMPARABLE_MODELS = ("BPE", "Unigram")  # WordPiece leaves out where spaces are


def read_pieces(directory: Path) -> dict[int, Piece] | None:
    """Id -> piece of tokenizer.json; None without such a file, empty if it is of a kind whose
    pieces cannot be compared.

    Raises:
        CheckpointError: a damaged file.
    """
    vocabulary = read_vocabulary(directory)
    if vocabulary is None:
        return None
    data = read_json(directory / TOKENIZER, MAX_TOKENIZER_BYTES)
    if (data.get("model") or {}).get("type", "BPE") not in _COMPARABLE_MODELS:
        return {}
    is_special = {
        token["content"]: bool(token.get("special")) for token in data.get("added_tokens") or []
    }
    spell = _byte_level if _is_byte_level(data) else _sentencepiece
    pieces: dict[int, Piece] = {}
    for token, token_id in vocabulary.items():
        if not isinstance(token, str) or type(token_id) is not int or token_id < 0:
            continue  # no tokenizer would load it
        if token in is_special:
            pieces[token_id] = token if is_special[token] else token.encode()
        else:
            pieces[token_id] = spell(token)
    return pieces


def shared_ids(draft: Mapping[int, Piece], target: Mapping[int, Piece]) -> dict[int, int]:
    """Draft id -> target id of the pieces that both have.

    Of two ids of one tokenizer with the same piece the higher one counts: in SentencePiece models
    single bytes come first and the tokens that are in use after them.
    """
    by_piece = {piece: token_id for token_id, piece in sorted(target.items())}
    return {
        token_id: by_piece[piece] for token_id, piece in sorted(draft.items()) if piece in by_piece
    }


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:  # added without being declared so
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    single = _SENTENCEPIECE_BYTE.fullmatch(token)
    return bytes([int(single[1], 16)]) if single else token.replace("▁", " ").encode()


def _is_byte_level(data: Mapping[str, Any]) -> bool:
    return "ByteLevel" in {*_types(data.get("pre_tokenizer")), *_types(data.get("decoder"))}


def _types(part: Any) -> Iterator[str]:
    """The types of a part of tokenizer.json, a sequence's too."""
    if isinstance(part, list):
        for inner in part:
            yield from _types(inner)
    elif isinstance(part, dict):
        yield str(part.get("type"))
        yield from _types(part.get("pretokenizers"))
        yield from _types(part.get("decoders"))


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    moved = {chr(256 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in sorted(printable)} | moved


_BYTE_OF: Mapping[str, int] = _byte_alphabet()

Reencode = Callable[[list[int]], list[int]]
"""Ids of one tokenizer -> those of another for the same text."""


def reencoder(source: Path, destination: Path) -> Reencode:
    """Re-encodes ids of one directory's tokenizer with another's, special tokens as their text.

    Raises:
        CheckpointError: a tokenizer.json that the tokenizers library does not load.
    """
    decoder, encoder = _tokenizer(source), _tokenizer(destination)

    def reencode(ids: list[int]) -> list[int]:
        text = decoder.decode(ids, skip_special_tokens=False)
        return list(encoder.encode(text, add_special_tokens=False).ids)

    return reencode


def _tokenizer(directory: Path) -> Any:
    from tokenizers import Tokenizer

    path = directory / TOKENIZER
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower kind
        raise CheckpointError(
            f"no usable tokenizer: {shown(str(error))}", where=path, mend="download it again"
        ) from error
