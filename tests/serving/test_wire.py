"""Requests as data: every field is honoured or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from neuron_spec.errors import RequestError
from neuron_spec.serving.wire import ChatRequest, CompletionRequest

UNSUPPORTED: list[tuple[str, Any]] = [
    ("temperature", 0.7),
    ("top_p", 0.9),
    ("n", 2),
    ("presence_penalty", 0.5),
    ("frequency_penalty", -0.5),
    ("logit_bias", {"5": 1}),
    ("logprobs", True),
    ("logprobs", 5),
]
COMPLETION_ONLY: list[tuple[str, Any]] = [("echo", True), ("best_of", 2), ("suffix", "end")]
NEUTRAL: list[tuple[str, Any]] = [
    ("temperature", 0),
    ("temperature", 0.0),
    ("temperature", None),
    ("top_p", 1.0),
    ("n", 1),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0),
    ("logit_bias", {}),
    ("logprobs", False),
    ("logprobs", 0),
    ("logprobs", None),
    ("seed", 7),
    ("user", "me"),
    ("stream", False),
]


def chat(**fields: Any) -> ChatRequest:
    messages = [{"role": "user", "content": "hi"}]
    return ChatRequest.model_validate({"model": "m", "messages": messages, **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "hi", **fields})


@pytest.mark.parametrize(("field", "value"), UNSUPPORTED + COMPLETION_ONLY)
def test_what_greedy_decoding_cannot_honour_is_refused(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**{field: value}).options()
    assert caught.value.field == field
    assert caught.value.found == value


@pytest.mark.parametrize(("field", "value"), UNSUPPORTED)
def test_the_same_for_conversations(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**{field: value}).options()
    assert caught.value.field == field


@pytest.mark.parametrize(("field", "value"), NEUTRAL)
def test_values_that_change_nothing_are_taken(field: str, value: Any) -> None:
    plain = completion().options()
    assert completion(**{field: value}).options() == plain
    assert chat(**{field: value}).options() == plain


@pytest.mark.parametrize("field", ["top_k", "tools", "max_token", "response_format"])
def test_unknown_fields_are_refused(field: str) -> None:
    for make in (completion, chat):
        with pytest.raises(ValidationError) as caught:
            make(**{field: 1})
        assert caught.value.errors()[0]["loc"] == (field,)


def test_stream_options_need_a_stream() -> None:
    with pytest.raises(RequestError) as caught:
        chat(stream_options={"include_usage": True}).options()
    assert caught.value.field == "stream_options"
    assert chat(stream=True, stream_options={"include_usage": True}).options()


@pytest.mark.parametrize(
    ("given", "taken"), [(None, ()), ("x", "x"), (["x", "y"], ["x", "y"]), ([], [])]
)
def test_stop_in_its_forms(given: Any, taken: Any) -> None:
    assert completion(stop=given).options()["stop"] == taken


def test_more_than_four_stop_strings_are_refused() -> None:
    with pytest.raises(ValidationError):
        completion(stop=["1", "2", "3", "4", "5"])


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ["hi"]),
        (["hi", "ho"], ["hi", "ho"]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ([], [[]]),
    ],
)
def test_prompts_in_their_forms(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompts() == prompts


def test_output_limits() -> None:
    assert completion().output_limit == 16  # OpenAI's default
    assert completion(max_tokens=None).output_limit is None
    assert completion(max_tokens=0).output_limit == 0
    assert chat().output_limit is None
    assert chat(max_tokens=5).output_limit == 5
    assert chat(max_tokens=5, max_completion_tokens=7).output_limit == 7
    assert chat(max_tokens=5, max_completion_tokens=0).output_limit == 0
    for make in (completion, chat):
        with pytest.raises(ValidationError):
            make(max_tokens=-1)


def test_messages_in_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts, "name": "x"}]
    assert chat(messages=messages).prompts() == [
        [{"role": "system", "content": "s"}, {"role": "user", "content": "ab"}]
    ]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "robot", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": "x", "tool_calls": []},
    ],
)
def test_messages_that_cannot_be_honoured_are_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        chat(messages=[message])
    with pytest.raises(ValidationError):
        chat(messages=[])
