"""Pieces of a vocabulary and the bytes they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from neuron_spec.engine.pieces import byte_level_bytes, sentencepiece_bytes


@given(st.text(min_size=1))
def test_byte_level_pieces_are_those_of_the_tokenizers_library(text: str) -> None:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    clean = text.encode("utf-8", "ignore").decode()
    pieces = [piece for piece, _ in splitter.pre_tokenize_str(clean)] if clean else []
    assert b"".join(map(byte_level_bytes, pieces)) == clean.encode()


def test_the_whole_byte_alphabet() -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert {byte_level_bytes(char) for char in alphabet} == {bytes([byte]) for byte in range(256)}
    assert byte_level_bytes("日") == "日".encode()  # an added token is written as it is


@pytest.mark.parametrize(
    ("piece", "raw"),
    [("▁the", b" the"), ("<0xE2>", b"\xe2"), ("<0xE2", b"<0xE2"), ("é", "é".encode()), ("", b"")],
)
def test_sentencepiece_pieces(piece: str, raw: bytes) -> None:
    assert sentencepiece_bytes(piece) == raw
