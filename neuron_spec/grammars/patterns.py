"""Regular expressions of a schema that a grammar over JSON text can stand for."""

from __future__ import annotations

import re

_QUOTE, _BACKSLASH, _FIRST_PRINTABLE = 0x22, 0x5C, 0x20
_PIECE = re.compile(
    r"""
      \\[dDwWsS]                    # a class
    | \\x([0-9A-Fa-f]{2})           # a character by its number
    | \\u([0-9A-Fa-f]{4})
    | \\[^\w\s"\\]                  # an escaped sign
    | \(\?: | \((?!\?)              # groups, but no look-around and no flags
    | \[\^?
    | [^\\^$"(\[\x00-\x1f]
    """,
    re.VERBOSE,
)


def pattern_fault(pattern: str) -> str | None:
    """Why a `pattern` cannot be enforced, or None.

    A grammar describes whole texts, so both anchors must be there. Characters that JSON writes with
    a backslash (quotes, backslashes, control characters) have no place in it: a pattern is matched
    with the text as it stands between the quotes.
    """
    if not (len(pattern) > 1 and pattern.startswith("^") and pattern.endswith("$")):
        return "expected ^…$, the whole text; for a part of it write ^.*(…).*$"
    place, end = 1, len(pattern) - 1
    while place < end:
        piece = _PIECE.match(pattern, place, end)
        if piece is None or not _stands_for_itself(piece.group(1) or piece.group(2)):
            return f"{pattern[place : place + 3]!r} cannot be enforced there"
        place = piece.end()
    return None


def _stands_for_itself(number: str | None) -> bool:
    if number is None:
        return True
    code = int(number, 16)
    return code >= _FIRST_PRINTABLE and code not in (_QUOTE, _BACKSLASH)
