"""Token ids as text, across the ways in which tokenizers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_vocabularies
from tokenizers import Tokenizer, pre_tokenizers

from neuron_spec.checkpoints.pieces import read_pieces, reencoder, shared_ids
from neuron_spec.errors import CheckpointError

BYTE_LEVEL = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]}}
SENTENCEPIECE = {"decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}]}}


def write(directory: Path, vocabulary: Any, rest: dict[str, Any], added: Any = ()) -> Path:
    directory.mkdir(exist_ok=True)
    model = {"type": "BPE", "vocab": vocabulary}
    data = {"model": model, "added_tokens": list(added), **rest}
    (directory / "tokenizer.json").write_text(json.dumps(data))
    return directory


def test_byte_level_tokens_are_the_bytes_they_stand_for(tmp_path: Path) -> None:
    directory = write(tmp_path, {"Ġthe": 0, "Ċ": 1, "Ã©": 2, "a": 3}, BYTE_LEVEL)
    assert read_pieces(directory) == {0: b" the", 1: b"\n", 2: "é".encode(), 3: b"a"}


def test_every_byte_is_known(tmp_path: Path) -> None:
    """As the library spells it: 256 characters, each for one byte."""
    tiny.write_tokenizer(tmp_path)
    pieces = read_pieces(tmp_path)
    assert pieces is not None
    found = {piece for piece in pieces.values() if isinstance(piece, bytes)}
    assert found == {bytes([byte]) for byte in range(256)}
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab()
    for character in "aé\n 中":
        string = spelled.pre_tokenize_str(character)[0][0]
        assert b"".join(pieces[vocabulary[c]] for c in string) == character.encode()  # type: ignore[misc]


def test_sentencepiece_tokens_have_spaces_and_bytes(tmp_path: Path) -> None:
    vocabulary = {"<0x0A>": 0, "▁the": 1, "▁▁": 2, "é": 3}
    directory = write(tmp_path, vocabulary, SENTENCEPIECE)
    assert read_pieces(directory) == {0: b"\n", 1: b" the", 2: b"  ", 3: "é".encode()}


def test_a_unigram_table_is_a_list(tmp_path: Path) -> None:
    directory = write(tmp_path, [["<unk>", 0.0], ["▁a", -1.5]], {})
    assert read_pieces(directory) == {0: b"<unk>", 1: b" a"}


def test_added_tokens_are_text_or_special(tmp_path: Path) -> None:
    added = [
        {"content": "<s>", "id": 1, "special": True},
        {"content": "Ġword", "id": 2, "special": False},
    ]
    directory = write(tmp_path, {"<s>": 1}, BYTE_LEVEL, added)
    assert read_pieces(directory) == {1: "<s>", 2: "Ġword".encode()}


def test_other_kinds_and_no_tokenizer(tmp_path: Path) -> None:
    assert read_pieces(tmp_path) is None
    data = {"model": {"type": "WordPiece", "vocab": {"##ing": 0}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert read_pieces(tmp_path) == {}


@pytest.mark.parametrize("vocabulary", [{"a": "0"}, {"a": -1}, {"a": None}, [[7, 0.0]], {"a": [0]}])
def test_entries_that_are_none_are_left_out(tmp_path: Path, vocabulary: Any) -> None:
    """The file may come from anyone."""
    assert read_pieces(write(tmp_path, vocabulary, {"decoder": {"decoders": 3}})) == {}


def test_the_same_text_is_shared_however_it_is_written(tmp_path: Path) -> None:
    byte_level = write(tmp_path / "a", {"Ġthe": 5, "Ċ": 6, "a": 7, "b": 8}, BYTE_LEVEL)
    other = write(tmp_path / "b", {"<0x0A>": 0, "<0x61>": 1, "a": 2, "▁the": 3}, SENTENCEPIECE)
    ours, theirs = read_pieces(byte_level), read_pieces(other)
    assert ours is not None and theirs is not None
    assert shared_ids(ours, theirs) == {5: 3, 6: 0, 7: 2}
    assert shared_ids(theirs, ours) == {0: 6, 1: 7, 2: 7, 3: 5}


def test_a_special_token_is_not_the_text_that_spells_it() -> None:
    assert shared_ids({0: "<s>", 1: b"<s>"}, {7: "<s>"}) == {0: 7}


def test_a_tokenizer_that_does_not_load_is_named(tmp_path: Path) -> None:
    tiny.write_tokenizer(tmp_path)
    broken = write(tmp_path / "broken", {"a": 0}, {})
    with pytest.raises(CheckpointError, match="no usable tokenizer") as caught:
        reencoder(tmp_path, broken)
    assert caught.value.where == broken / "tokenizer.json"


def test_text_is_re_encoded(tmp_path: Path) -> None:
    tiny.write_tokenizer(tmp_path)
    vocabulary = tiny_vocabularies.write_tokenizer(tmp_path / "other", merges=("abc",), missing="x")
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab()
    reencode = reencoder(tmp_path, tmp_path / "other")
    found = reencode([theirs[token] for token in ("<|im_start|>", "a", "b", "c", "x", "d")])
    assert found == [vocabulary[token] for token in ("<|im_start|>", "abc", "d")]
