"""Choices, seeds, log-probabilities, echo and usage, whole and streamed, to the token."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from served import (
    CHAT,
    COMPLETIONS,
    MODEL,
    AnySpeculator,
    TestClient,
    answer,
    any_app,
    error_of,
    join,
    sse,
    with_limits,
)

from neuron_spec import compile_model, load, load_spec, prepare
from neuron_spec.serving.app import create_app
from neuron_spec.serving.choices import choice_seed

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "5 6", "max_tokens": 7}
CONVERSATION: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "5 6"}],
    "max_tokens": 7,
}


@pytest.fixture
def client() -> Iterator[Any]:
    with TestClient(any_app(), raise_server_exceptions=False) as client:
        yield client


def words(seed: int | None, count: int, prompt: tuple[int, ...] = (5, 6)) -> list[str]:
    return [f"{answer(prompt, seed, position)} " for position in range(count)]


def same_streamed(client: Any, url: str, request: dict[str, Any], body: dict[str, Any]) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = sse(client.post(url, json={**request, **options}).text)
    choices, usage = join(url, events)
    whole = [
        {
            "text": choice["message"]["content"] if url == CHAT else choice["text"],
            "logprobs": choice["logprobs"],
            "finish_reason": choice["finish_reason"],
        }
        for choice in body["choices"]
    ]
    assert choices == whole
    assert usage == body["usage"]


@pytest.mark.parametrize(("url", "base"), [(COMPLETIONS, COMPLETION), (CHAT, CONVERSATION)])
def test_several_choices_each_with_its_own_seed(
    client: Any, url: str, base: dict[str, Any]
) -> None:
    request = {**base, "n": 3, "seed": 11}
    body = client.post(url, json=request).json()
    contents = [c["message"]["content"] if url == CHAT else c["text"] for c in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert contents == ["".join(words(choice_seed(11, index), 7)) for index in range(3)]
    assert len(set(contents)) == 3
    counts = {"prompt_tokens": 2, "completion_tokens": 21, "total_tokens": 23}
    assert body["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 0}}
    same_streamed(client, url, request, body)
    alone = client.post(url, json={**request, "n": 1}).json()
    assert alone["choices"][0] == body["choices"][0]


def test_seeds_of_choices_differ_and_fit() -> None:
    assert choice_seed(-5, 0) == -5
    seeds = {choice_seed(seed, index) for seed in range(20) for index in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_prompts_and_choices_in_openais_order(client: Any) -> None:
    request = {**COMPLETION, "prompt": [[5, 6], [7]], "n": 2, "seed": 3}
    body = client.post(COMPLETIONS, json=request).json()
    wanted = [
        "".join(words(choice_seed(3, index), 7, prompt))
        for prompt in ((5, 6), (7,))
        for index in range(2)
    ]
    assert [choice["text"] for choice in body["choices"]] == wanted
    assert body["usage"]["prompt_tokens"] == 3
    same_streamed(client, COMPLETIONS, request, body)


def test_streamed_choices_come_side_by_side(client: Any) -> None:
    request = {**COMPLETION, "prompt": [[5], [7]], "stream": True, "max_tokens": 30}
    events = sse(client.post(COMPLETIONS, json=request).text)
    order = [event["choices"][0]["index"] for event in events[:-1]]
    assert order.index(1) < len(order) // 4
    assert max(i for i, index in enumerate(order) if index == 0) > 3 * len(order) // 4


@pytest.mark.parametrize("count", [0, 2])
def test_log_probabilities_of_a_completion(client: Any, count: int) -> None:
    request = {**COMPLETION, "logprobs": count, "seed": 1}
    body = client.post(COMPLETIONS, json=request).json()
    (choice,) = body["choices"]
    told, tokens = choice["logprobs"], words(1, 7)
    assert told["tokens"] == tokens
    assert told["token_logprobs"] == [-math.log(int(token)) for token in tokens]
    lengths = [len(token) for token in tokens]
    assert told["text_offset"] == [sum(lengths[:index]) for index in range(7)]
    top = {"3 ": 0.0, "4 ": -1.0} if count else {}
    for token, logprob, best in zip(
        tokens, told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert best == {**top, token: logprob}
    same_streamed(client, COMPLETIONS, request, body)


def test_log_probabilities_of_a_chat(client: Any) -> None:
    request = {**CONVERSATION, "logprobs": True, "top_logprobs": 2, "seed": 1, "n": 2}
    body = client.post(CHAT, json=request).json()
    for index, choice in enumerate(body["choices"]):
        told = choice["logprobs"]["content"]
        tokens = words(choice_seed(1, index), 7)
        assert [entry["token"] for entry in told] == tokens
        assert [bytes(entry["bytes"]).decode() for entry in told] == tokens
        assert [entry["logprob"] for entry in told] == [-math.log(int(token)) for token in tokens]
        top = [
            {"token": t, "logprob": p, "bytes": list(t.encode())}
            for t, p in [("3 ", 0), ("4 ", -1)]
        ]
        assert all(entry["top_logprobs"] == top for entry in told)
    same_streamed(client, CHAT, request, body)
    assert client.post(CHAT, json=CONVERSATION).json()["choices"][0]["logprobs"] is None


def test_every_token_is_told_also_those_that_a_stop_string_cuts_off(client: Any) -> None:
    tokens = words(1, 7)
    request = {**COMPLETION, "logprobs": 0, "seed": 1, "stop": tokens[2] + tokens[3][:1]}
    body = client.post(COMPLETIONS, json=request).json()
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("".join(tokens[:2]), "stop")
    assert choice["logprobs"]["tokens"] == tokens[:4]
    assert body["usage"]["completion_tokens"] == 4
    same_streamed(client, COMPLETIONS, request, body)


def test_a_stop_string_at_the_limit_is_the_reason(client: Any) -> None:
    """The string, a later one and the limit lie in one block of accepted tokens."""
    for limit in range(1, 12):
        tokens = words(1, limit)
        for stop, reason in ((tokens[-1].strip(), "stop"), ("x", "length")):
            request = {**COMPLETION, "seed": 1, "max_tokens": limit, "stop": [stop]}
            choice = client.post(COMPLETIONS, json=request).json()["choices"][0]
            text = "".join(tokens)
            assert choice["text"] == (text[: text.index(stop)] if reason == "stop" else text)
            assert choice["finish_reason"] == reason


@pytest.mark.parametrize(("prompt", "echoed"), [("5 6", "5 6"), ([5, 6], "5 6 ")])
@pytest.mark.parametrize("limit", [0, 4])
def test_echo(client: Any, prompt: Any, echoed: str, limit: int) -> None:
    request = {**COMPLETION, "prompt": prompt, "echo": True, "n": 2, "max_tokens": limit, "seed": 2}
    body = client.post(COMPLETIONS, json=request).json()
    wanted = [echoed + "".join(words(choice_seed(2, index), limit)) for index in range(2)]
    assert [choice["text"] for choice in body["choices"]] == wanted
    assert body["usage"]["completion_tokens"] == 2 * limit
    same_streamed(client, COMPLETIONS, request, body)


def test_acceptance_on_request(client: Any) -> None:
    plain = client.post(COMPLETIONS, json=COMPLETION).json()["usage"]
    assert "acceptance" not in plain
    request = {**COMPLETION, "include_acceptance": True, "seed": 4}
    told = client.post(COMPLETIONS, json=request).json()["usage"]["acceptance"]
    # Positions 1, 3 and 7 of the reply: 1, 3 and then 3 of 3 drafts accepted.
    assert (told["num_steps"], told["num_drafted_tokens"], told["num_accepted_tokens"]) == (2, 6, 4)
    assert (told["acceptance_length"], told["steps_by_num_accepted"]) == (3.0, [0, 1, 0, 1])
    assert told["acceptance_rate_by_position"] == [1.0, 0.5, 0.5]
    events = sse(client.post(COMPLETIONS, json={**request, "stream": True}).text)
    assert events[-2]["usage"]["acceptance"] == told


def test_a_backend_without_log_probabilities_refuses_them_by_name() -> None:
    with TestClient(any_app(with_limits(has_logprobs=False))) as client:
        error = error_of(client.post(COMPLETIONS, json={**COMPLETION, "logprobs": 1}), 400)
    assert error["param"] == "logprobs"


def test_ids_beyond_the_vocabulary_are_refused_before_anything_runs() -> None:
    speculator = AnySpeculator()
    with TestClient(any_app(speculator)) as client:
        for field, value in (("logit_bias", {"100": 1}), ("stop_token_ids", [100])):
            for stream in (False, True):
                request = {**COMPLETION, field: value, "stream": stream}
                assert error_of(client.post(COMPLETIONS, json=request), 400)["param"] == field
    assert not speculator.rows


# A real artifact that samples


@pytest.fixture(scope="module")
def sampling(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("sampling")
    tiny.write_target(folder / "target")
    path = tiny.write_spec(
        folder / "tiny.toml",
        target={"model": "target"},
        draft={"method": "ngram", "num_draft_tokens": 3},
        verification={"rule": "rejection"},
        shape={"max_prompt_tokens": 64, "max_total_tokens": 96, "batch_size": 2},
    )
    spec = load_spec(path)
    return compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")


def test_what_is_sampled_is_what_a_session_samples(sampling: Any) -> None:
    session = load(sampling.directory)
    fields: dict[str, Any] = {
        "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 9,
        "presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2,
        "min_tokens": 3, "ignore_eos": True, "stop_token_ids": [300 - 100],
    }  # fmt: skip
    wanted = session.generate("abab", max_new_tokens=12, logit_bias={70: 3.0}, logprobs=2, **fields)
    request = {"model": "tiny", "prompt": "abab", "max_tokens": 12, "logprobs": 2, **fields}
    with TestClient(create_app(sampling)) as client:
        assert client.get("/v1/models").json()["data"][0]["default_temperature"] == 1
        body = client.post(COMPLETIONS, json={**request, "logit_bias": {"70": 3.0}}).json()
        (choice,) = body["choices"]
        assert choice["text"] == wanted.text
        assert body["usage"]["completion_tokens"] == len(wanted.token_ids)
        assert wanted.logprobs is not None
        told = choice["logprobs"]["token_logprobs"]
        assert told == pytest.approx([entry.logprob for entry in wanted.logprobs])
        spelt = [session.tokenizer.token_bytes(token) for token in wanted.token_ids]
        assert len(choice["logprobs"]["tokens"]) == len(spelt)
        same_streamed(client, COMPLETIONS, {**request, "logit_bias": {"70": 3.0}}, body)
        for field in ("logit_bias", "temperature", "seed", "presence_penalty"):  # each one counts
            other = {"logit_bias": {}, "temperature": 0, "seed": 10, "presence_penalty": 2}[field]
            changed = {**request, "logit_bias": {"70": 3.0}, field: other}
            text = client.post(COMPLETIONS, json=changed).json()["choices"][0]["text"]
            assert text != wanted.text, field


def test_the_default_temperature_samples_and_zero_is_greedy(sampling: Any) -> None:
    session = load(sampling.directory)
    greedy = session.generate("abab", max_new_tokens=12, ignore_eos=True).text
    sampled = session.generate("abab", max_new_tokens=12, ignore_eos=True, temperature=1.0, seed=5)
    request = {"model": "tiny", "prompt": "abab", "max_tokens": 12, "ignore_eos": True, "seed": 5}
    with TestClient(create_app(sampling)) as client:
        text = client.post(COMPLETIONS, json=request).json()["choices"][0]["text"]
        assert text == sampled.text != greedy
        zero = client.post(COMPLETIONS, json={**request, "temperature": 0}).json()
        assert zero["choices"][0]["text"] == greedy


def test_bytes_of_tokens_that_are_parts_of_characters(sampling: Any) -> None:
    """One token a byte: ids 3 … 258 in the alphabet's order; é is two of them."""
    session = load(sampling.directory)
    ids = session.tokenizer.encode("é😀")
    assert b"".join(session.tokenizer.token_bytes(token) for token in ids) == "é😀".encode()
    request = {
        "model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2,
        "logprobs": True, "logit_bias": {str(ids[0]): 100}, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    with TestClient(create_app(sampling)) as client:
        body = client.post(CHAT, json=request).json()
    first = body["choices"][0]["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == ("bytes:\\xc3", [0xC3])
    json.dumps(body)
