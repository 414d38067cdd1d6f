"""Tokens as text, and numbers that JSON can carry."""

from __future__ import annotations

import json
import math

import pytest

from neuron_spec.backends.base import TokenLogprobs
from neuron_spec.engine.events import TokenEvent
from neuron_spec.serving.logprobs import chat_logprobs, completion_logprobs, token_text

SPELT = {1: b"\xc3", 2: b"\xa9", 3: "é".encode()}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b" the", " the"),
        ("é".encode(), "é"),
        (b"\xc3", "bytes:\\xc3"),
        (b"\xe2\x80", "bytes:\\xe2\\x80"),
    ],
)
def test_a_token_as_text(raw: bytes, text: str) -> None:
    assert token_text(raw) == text


def test_parts_of_characters_stay_apart_and_infinity_becomes_a_number() -> None:
    logprobs = TokenLogprobs(-math.inf, ((2, -0.5), (3, -1.0)))
    event = TokenEvent(1, 1, "", "plain", logprobs, text_offset=4)
    told = completion_logprobs([event], SPELT.__getitem__)
    assert told["top_logprobs"] == [{"bytes:\\xa9": -0.5, "é": -1.0, "bytes:\\xc3": -9999.0}]
    assert (told["token_logprobs"], told["text_offset"]) == ([-9999.0], [4])
    (entry,) = chat_logprobs([event], SPELT.__getitem__)["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("bytes:\\xc3", -9999.0, [0xC3])
    assert [top["bytes"] for top in entry["top_logprobs"]] == [[0xA9], [0xC3, 0xA9]]
    json.dumps([told, entry], allow_nan=False)
