"""A vocabulary's pieces -> the bytes they stand for.

Byte-level BPE writes every byte as one printable character (GPT-2 `encoder.py`,
`bytes_to_unicode`); sentencepiece writes a space as U+2581 and single bytes as `<0xE2>`.
"""

from __future__ import annotations

import re
from functools import lru_cache

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_bytes(piece: str) -> bytes:
    """Of a byte-level piece; characters outside the table (added tokens) are themselves."""
    table = _byte_of_character()
    return b"".join(
        bytes([table[char]]) if char in table else char.encode("utf-8", "replace") for char in piece
    )


def sentencepiece_bytes(piece: str) -> bytes:
    """Of a sentencepiece piece."""
    match = _BYTE_PIECE.fullmatch(piece)
    if match:
        return bytes([int(match.group(1), 16)])
    return piece.replace("\u2581", " ").encode("utf-8", "replace")


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """Printable bytes stand for themselves, the others for U+0100 on, in rising order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }
