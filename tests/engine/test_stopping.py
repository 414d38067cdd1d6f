"""Stopping, against the plainest possible statement of what should come out.

Tokens are single bytes of UTF-8 here, so a character may need up to four of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.engine.events import FinishReason
from neuron_spec.engine.stopping import OutputCutter, TextStream

EOS = 256
# Few characters, so that stop strings do occur; of one to four bytes.
ALPHABET = "ab né→😀"


def decode(tokens: Sequence[int]) -> str:
    return bytes(token for token in tokens if token != EOS).decode("utf-8", "replace")


def run(
    tokens: Sequence[int], limit: int, stop: Sequence[str]
) -> tuple[list[str], str, FinishReason | None, int]:
    """Texts of the pushes, text of the end, reason, and how many tokens were taken."""
    cutter = OutputCutter(decode, limit=limit, stop=stop, stop_token_ids=frozenset({EOS}))
    shown: list[str] = []
    for token in tokens:
        if cutter.reason is not None:
            break
        shown.append(cutter.push(token))
    return shown, cutter.finish(), cutter.reason, cutter.num_tokens


def whole_part(data: bytes) -> str:
    """Text of the complete characters at the beginning of valid UTF-8."""
    for end in range(len(data), -1, -1):
        try:
            return data[:end].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return ""


def expected(text: str, limit: int, stop: Sequence[str]) -> tuple[str, FinishReason | None, int]:
    """Output, reason and number of tokens, by searching all text again after every token."""
    data = text.encode("utf-8")
    for count in range(1, min(limit, len(data)) + 1):
        so_far = whole_part(data[:count])
        found = [index for text in stop if (index := so_far.find(text)) >= 0]
        if found:
            return so_far[: min(found)], "stop", count
    if limit <= len(data):
        return decode(data[:limit]), "length", limit
    return text, None, len(data)


TEXTS = st.text(ALPHABET, max_size=24)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3)


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, stop=STOPS, limit=st.integers(0, 40))
def test_output_is_the_text_up_to_the_first_stop_string(
    text: str, stop: list[str], limit: int
) -> None:
    shown, rest, reason, count = run(text.encode("utf-8"), limit, stop)
    assert ("".join(shown) + rest, reason, count) == expected(text, limit, stop)


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, stop=STOPS)
def test_nothing_is_shown_that_might_have_to_be_taken_back(text: str, stop: list[str]) -> None:
    data = text.encode("utf-8")
    shown, _, reason, count = run(data, 1000, stop)
    for number in range(1, count + (reason is None)):
        so_far, certain = whole_part(data[:number]), "".join(shown[:number])
        assert so_far.startswith(certain)  # never a partial character
        for string in stop:  # never the beginning of a stop string that may still come
            sizes = range(1, len(string))
            held = [size for size in sizes if so_far.endswith(string[:size])]
            assert len(certain) <= len(so_far) - max(held, default=0)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, stop=STOPS)
def test_nothing_is_held_back_without_need(text: str, stop: list[str]) -> None:
    data = text.encode("utf-8")
    shown, _, reason, count = run(data, 1000, stop)
    if reason is not None:
        return
    longest = max((len(string) for string in stop), default=1) - 1
    for number in range(1, count + 1):
        so_far = whole_part(data[:number])
        assert len("".join(shown[:number])) >= len(so_far) - longest


@given(text=st.text(max_size=40))
def test_any_text_comes_out_as_it_went_in(text: str) -> None:
    text = text.encode("utf-8", "replace").decode("utf-8")
    shown, rest, reason, _ = run(text.encode("utf-8"), 1000, ())
    assert ("".join(shown) + rest, reason) == (text, None)


@given(data=st.binary(max_size=40))
def test_broken_bytes_come_out_as_replacement_characters(data: bytes) -> None:
    shown, rest, _, _ = run(data, 1000, ())
    assert "".join(shown) + rest == data.decode("utf-8", "replace")


def test_a_character_is_shown_with_its_last_byte() -> None:
    shown, rest, _, _ = run("é→😀".encode(), 1000, ())
    assert shown == ["", "é", "", "", "→", "", "", "", "😀"]
    assert rest == ""


def test_an_unfinished_character_is_flushed_at_the_limit() -> None:
    shown, rest, reason, _ = run("a→".encode(), 3, ())
    assert (shown, rest, reason) == (["a", "", ""], "\ufffd", "length")


def test_a_stop_string_is_held_until_it_is_complete_or_impossible() -> None:
    shown, rest, reason, _ = run(b"x<en<end>y", 1000, ["<end>"])
    assert shown == ["x", "", "", "", "<en", "", "", "", ""]
    assert (rest, reason) == ("", "stop")


def test_the_beginning_of_a_stop_string_is_output_when_the_text_ends_there() -> None:
    for limit, end, reason in ((3, b"", "length"), (1000, bytes([1]), "stop")):
        tokens = [*b"x<e", *([EOS] if end else [])]
        shown, rest, found, _ = run(tokens, limit, ["<end>"])
        assert (shown[:3], rest, found) == (["x", "", ""], "<e", reason)


def test_an_end_token_counts_and_shows_nothing() -> None:
    shown, rest, reason, count = run([*b"hi", EOS, *b"no"], 1000, ())
    assert (shown, rest, reason, count) == (["h", "i", ""], "", "stop", 3)


def test_an_end_token_as_the_very_last_allowed_one_is_a_stop() -> None:
    assert run([*b"hi", EOS], 3, ())[2] == "stop"


def test_a_stop_string_with_the_very_last_allowed_token_is_a_stop() -> None:
    shown, rest, reason, count = run(b"abc", 3, ["bc"])
    assert ("".join(shown) + rest, reason, count) == ("a", "stop", 3)


def test_a_stop_string_completed_by_flushed_characters_still_cuts() -> None:
    shown, rest, reason, _ = run("a→".encode()[:2], 2, ["\ufffd"])
    assert ("".join(shown) + rest, reason) == ("a", "stop")


def test_the_earliest_of_two_stop_strings_in_one_token_wins() -> None:
    cutter = OutputCutter(lambda tokens: "one two three" * len(tokens), limit=9, stop=["two", "ne"])
    assert cutter.push(0) == "o"
    assert cutter.reason == "stop"
    assert cutter.finish() == ""


def test_limit_zero_is_complete_before_it_begins() -> None:
    cutter = OutputCutter(decode, limit=0)
    assert (cutter.reason, cutter.finish(), cutter.num_tokens) == ("length", "", 0)


def test_text_is_decoded_with_what_came_before() -> None:
    """A sentencepiece-like decoder drops the space before the first word of what it is given."""
    words = ["▁Hello", "▁world", "s", "▁!"]

    def decode_words(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    stream = TextStream(decode_words)
    assert [stream.push(token) for token in range(4)] == ["Hello", " world", "s", " !"]
    assert stream.flush() == ""


@pytest.mark.parametrize("length", [100, 1000])
def test_the_work_a_token_does_not_grow_with_the_text(length: int) -> None:
    decoded: list[int] = []

    def counting(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return decode(tokens)

    stream = TextStream(counting)
    for token in b"x" * length:
        stream.push(token)
    assert max(decoded) <= 2
