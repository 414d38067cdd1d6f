"""Requests as data: every field is honoured or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from neuron_spec.errors import RequestError
from neuron_spec.serving.wire import (
    MAX_BIASES,
    MAX_PROMPTS,
    ChatRequest,
    CommonRequest,
    CompletionRequest,
)

OPTIONS: list[tuple[str, Any]] = [
    ("temperature", 0.7),
    ("top_p", 0.9),
    ("top_k", 5),
    ("min_p", 0.1),
    ("repetition_penalty", 1.1),
    ("presence_penalty", 0.5),
    ("frequency_penalty", -0.5),
    ("min_tokens", 3),
    ("seed", 7),
    ("stop_token_ids", [5]),
    ("ignore_eos", True),
    ("response_format", {"type": "json_object"}),
]
NEUTRAL: list[tuple[str, Any]] = [
    *((field, None) for field, _ in OPTIONS),
    ("logit_bias", {}),
    ("logit_bias", None),
    ("logprobs", None),
    ("n", None),
    ("user", "me"),
    ("stream", False),
    ("stream", None),
    ("stream_options", None),
    ("response_format", None),
    ("response_format", {"type": "text"}),
]


def chat(**fields: Any) -> ChatRequest:
    messages = [{"role": "user", "content": "hi"}]
    return ChatRequest.model_validate({"model": "m", "messages": messages, **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "hi", **fields})


def options_of(wire: CommonRequest, *, can_sample: bool = True) -> dict[str, Any]:
    return wire.options(can_sample=can_sample)


@pytest.mark.parametrize(("field", "value"), OPTIONS)
def test_options_reach_the_session(field: str, value: Any) -> None:
    for make in (completion, chat):
        assert options_of(make(**{field: value}))[field] == value


@pytest.mark.parametrize(("field", "value"), NEUTRAL)
def test_values_that_change_nothing_are_taken(field: str, value: Any) -> None:
    for make in (completion, chat):
        assert options_of(make(**{field: value})) == options_of(make())


def test_the_temperature_left_out_is_one_where_the_rule_can_sample() -> None:
    for make in (completion, chat):
        assert options_of(make())["temperature"] == 1
        assert options_of(make(), can_sample=False)["temperature"] == 0
        assert options_of(make(temperature=0))["temperature"] == 0
        assert options_of(make(temperature=1), can_sample=False)["temperature"] == 1


def test_logit_bias_by_id() -> None:
    assert options_of(chat(logit_bias={"5": 1, "07": -2.5}))["logit_bias"] == {5: 1, 7: -2.5}
    for key in ("x", "", "-1", "1.0", "٣", "9" * 30):
        with pytest.raises(RequestError) as caught:
            options_of(chat(logit_bias={key: 1}))
        assert caught.value.field == "logit_bias"
    most = {str(token): 1.0 for token in range(MAX_BIASES)}
    assert len(options_of(chat(logit_bias=most))["logit_bias"]) == MAX_BIASES
    with pytest.raises(ValidationError, match="too many token ids") as refused:
        chat(logit_bias={**most, "x": 1.0})
    assert [error["loc"] for error in refused.value.errors()] == [("logit_bias",)]


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 4}, 4)],
)
def test_log_probabilities_of_a_chat(fields: dict[str, Any], count: int | None) -> None:
    assert options_of(chat(**fields))["logprobs"] == count


def test_log_probabilities_of_a_completion() -> None:
    assert options_of(completion(logprobs=0))["logprobs"] == 0
    assert options_of(completion(logprobs=5))["logprobs"] == 5
    for value in (-1, 21, True, 1.5, "5"):
        with pytest.raises(ValidationError):
            completion(logprobs=value)


@pytest.mark.parametrize(
    ("make", "fields", "field"),
    [
        (chat, {"top_logprobs": 3}, "top_logprobs"),
        (chat, {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        (completion, {"min_tokens": 17}, "min_tokens"),
        (completion, {"best_of": 2}, "best_of"),
        (completion, {"best_of": 1, "n": 2}, "best_of"),
        (completion, {"suffix": "x"}, "suffix"),
        (completion, {"echo": True, "logprobs": 1}, "echo"),
    ],
)
def test_fields_that_contradict_each_other(make: Any, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        options_of(make(**fields))
    assert caught.value.field == field


def test_best_of_that_says_no_more_than_n() -> None:
    assert options_of(completion(best_of=2, n=2)) == options_of(completion())
    assert options_of(completion(best_of=1, suffix="")) == options_of(completion())


@pytest.mark.parametrize("field", ["tools", "max_token", "logprob", "functions"])
def test_unknown_fields_are_refused(field: str) -> None:
    for make in (completion, chat):
        with pytest.raises(ValidationError) as caught:
            make(**{field: 1})
        assert caught.value.errors()[0]["loc"] == (field,)


@pytest.mark.parametrize(
    ("fields", "wants_usage", "wants_acceptance"),
    [
        ({}, False, False),
        ({"stream_options": {"include_usage": True}}, True, False),
        ({"stream_options": {"include_acceptance": True}}, True, True),
        ({"include_acceptance": True}, True, True),
    ],
)
def test_what_a_stream_ends_with(
    fields: dict[str, Any], wants_usage: bool, wants_acceptance: bool
) -> None:
    request = chat(stream=True, **fields)
    assert (request.wants_usage, request.wants_acceptance) == (wants_usage, wants_acceptance)


def test_stream_options_need_a_stream() -> None:
    with pytest.raises(RequestError) as caught:
        options_of(chat(stream_options={"include_usage": True}))
    assert caught.value.field == "stream_options"
    assert options_of(chat(stream=True, stream_options={"include_usage": True}))


@pytest.mark.parametrize(
    ("given", "taken"), [(None, ()), ("x", "x"), (["x", "y"], ["x", "y"]), ([], [])]
)
def test_stop_in_its_forms(given: Any, taken: Any) -> None:
    assert options_of(completion(stop=given))["stop"] == taken


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


MANY = 10_000


@pytest.mark.parametrize(
    ("make", "fields", "field"),
    [
        (completion, {"prompt": [1.5] * MANY}, "prompt"),
        (completion, {"prompt": [None] * MANY}, "prompt"),
        (completion, {"prompt": [[1.5] * MANY] * 9}, "prompt"),
        (completion, {"prompt": [[1], *[[1.5]] * MANY]}, "prompt"),
        (completion, {"prompt": ["a"] * MANY}, "prompt"),
        (completion, {"prompt": [[1]] * MANY}, "prompt"),
        (completion, {"prompt": "a", "stop": [1] * MANY}, "stop"),
        (completion, {"prompt": "a", "stop_token_ids": ["x"] * MANY}, "stop_token_ids"),
        (completion, {"logit_bias": {str(n): "x" for n in range(MANY)}}, "logit_bias"),
        (completion, {"prompt": "a", **{f"no{n}": 1 for n in range(MANY)}}, "no0"),
        (chat, {"messages": [{"role": "nobody"}] * MANY}, "messages"),
        (chat, {"messages": [{"role": "user", "content": [{}] * MANY}]}, "messages"),
        (chat, {"messages": [{"role": "user", **{f"no{n}": 1 for n in range(MANY)}}]}, "messages"),
        (chat, {"stream_options": {f"no{n}": 1 for n in range(MANY)}}, "stream_options"),
    ],
)  # fmt: skip
def test_a_request_wrong_in_ten_thousand_places_is_refused_at_the_first_few(
    make: Any, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        make(**fields)
    faults = caught.value.errors()
    assert len(faults) <= 8
    assert field in {fault["loc"][0] for fault in faults}


def test_known_fields_count_however_many_unknown_ones_stand_before_them() -> None:
    unknown = {f"no{n}": 1 for n in range(MANY)}
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({**unknown, "model": "m", "messages": [], "temperature": "hot"})
    fields = [fault["loc"][0] for fault in caught.value.errors()]
    assert fields == ["temperature", "messages", "no0", "no1", "no2", "no3"]


def test_as_many_prompts_as_the_protocol_knows() -> None:
    assert len(completion(prompt=["a"] * MAX_PROMPTS).prompts()) == MAX_PROMPTS
    assert len(completion(prompt=[[1]] * MAX_PROMPTS).prompts()) == MAX_PROMPTS
    for prompt in (["a"], [[1]]):
        with pytest.raises(ValidationError, match=f"at most {MAX_PROMPTS} items"):
            completion(prompt=prompt * (MAX_PROMPTS + 1))


def test_a_format_is_one_that_holds_the_output_to_something() -> None:
    assert not chat().wants_grammar
    assert not chat(response_format={"type": "text"}).wants_grammar
    assert chat(response_format={"type": "json_object"}).wants_grammar
