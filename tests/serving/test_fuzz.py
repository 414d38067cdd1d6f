"""A thousand bodies that nobody sends on purpose: every answer is 2xx or 4xx, in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import CHAT, COMPLETIONS, MODEL, AnySpeculator, TestClient, any_app, wait_until

FUZZ = settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
SMALL, RATIO = st.integers(-2, 25), st.floats(-1, 2)
WORDS = st.text(alphabet="5 é\ud800\x00😀", max_size=12)
IDS = st.integers(-1, 101)
COMMON = {
    "n": st.integers(0, 5),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "include_acceptance": st.booleans(),
    "include_tokens": st.booleans(),
    "speculate": st.booleans(),
    "stop": WORDS | st.lists(WORDS, max_size=5),
    "stop_token_ids": st.lists(IDS, max_size=3),
    "ignore_eos": st.booleans(),
    "temperature": RATIO, "top_p": RATIO, "top_k": SMALL, "min_p": RATIO,
    "repetition_penalty": RATIO, "presence_penalty": st.floats(-3, 3),
    "frequency_penalty": st.floats(-3, 3),
    "logit_bias": st.dictionaries(IDS.map(str) | WORDS, st.floats(-101, 101), max_size=3),
    "min_tokens": SMALL, "seed": st.integers(-(2**65), 2**65), "max_tokens": SMALL,
    "user": WORDS, "response_format": ANYTHING,
}  # fmt: skip
PROMPTS = WORDS | st.lists(WORDS | SMALL | st.lists(IDS, max_size=18), max_size=4)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "robot"]), "content": WORDS | ANYTHING}
    ),
    max_size=3,
)
BODIES = {
    COMPLETIONS: (
        {"prompt": PROMPTS},
        {
            "logprobs": SMALL | st.booleans(),
            "echo": st.booleans(),
            "best_of": SMALL,
            "suffix": WORDS,
        },
    ),
    CHAT: (
        {"messages": MESSAGES},
        {"logprobs": st.booleans(), "top_logprobs": SMALL, "max_completion_tokens": SMALL},
    ),
}


def bodies(url: str, change: Any) -> Any:
    """Requests of the right form with any values; `change` may put any value into any field."""
    needed, optional = BODIES[url]
    fields = {**COMMON, **optional}
    few = st.sets(st.sampled_from(sorted(fields)), max_size=5)

    def of(names: set[str]) -> Any:
        chosen = {name: fields[name] for name in names}
        return st.fixed_dictionaries({"model": st.just(MODEL), **needed, **chosen})

    return few.flatmap(of).flatmap(change)


def one_field_wrong(body: dict[str, Any]) -> Any:
    """Sometimes, for what is right mostly would hardly ever come."""
    wrong = st.tuples(st.sampled_from(sorted(body)) | st.text(max_size=5), ANYTHING)
    return st.just(body) | wrong.map(lambda pair: {**body, pair[0]: pair[1]})


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Any, AnySpeculator]]:
    speculator = AnySpeculator()
    with TestClient(any_app(speculator), raise_server_exceptions=False) as client:
        yield client, speculator
        wait_until(lambda: not speculator.rows)  # no slot was lost
        assert client.get("/health").json()["status"] == "ok"


def check(client: Any, url: str, content: bytes) -> int:
    response = client.post(url, content=content, headers={"content-type": "application/json"})
    status: int = response.status_code
    assert status < 500, (content, response.text)
    if status == 200 and response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n"), (content, response.text)
    elif status == 200:
        body = response.json()
        assert body["usage"]["completion_tokens"] >= 0
        assert all(choice["finish_reason"] for choice in body["choices"])
    else:
        error = response.json()["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"
    return status


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
def test_bodies_of_the_right_form(served: tuple[Any, AnySpeculator], url: str) -> None:
    seen: set[int] = set()

    @FUZZ
    @given(bodies(url, one_field_wrong))
    def run(body: dict[str, Any]) -> None:
        seen.add(check(served[0], url, json.dumps(body).encode()))

    run()
    assert seen >= {200, 400}


@FUZZ
@given(content=st.binary(max_size=60), url=st.sampled_from([COMPLETIONS, CHAT]))
def test_raw_bytes(served: tuple[Any, AnySpeculator], content: bytes, url: str) -> None:
    check(served[0], url, content)


@FUZZ
@given(body=ANYTHING, url=st.sampled_from([COMPLETIONS, CHAT]))
def test_any_json(served: tuple[Any, AnySpeculator], body: Any, url: str) -> None:
    check(served[0], url, json.dumps(body).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"model": ' + b"9" * 5000 + b"}",
        b'{"seed": NaN}',
        b"\x00",
        b"\xef\xbb\xbf{}",
    ],
)
def test_bodies_that_break_parsers(served: tuple[Any, AnySpeculator], content: bytes) -> None:
    for url in (COMPLETIONS, CHAT):
        assert check(served[0], url, content) == 400
