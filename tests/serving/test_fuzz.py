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
TEXT = st.text(alphabet="5 é\x00😀", min_size=1, max_size=12).filter(str.strip)
IDS, NEAR_IDS = st.integers(0, 99), st.integers(-1, 101)
SHARE, PENALTY = st.floats(0, 1), st.floats(-2, 2)
# Of each field: values that a request may hold, and values on both sides of its limits.
COMMON = {
    "n": (st.integers(1, 4), st.integers(0, 5)),
    "stream": (st.booleans(), st.none() | st.booleans()),
    "stream_options": (
        st.none(),
        st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    ),
    "include_acceptance": (st.booleans(), RATIO),
    "include_tokens": (st.booleans(), RATIO),
    "speculate": (st.booleans(), RATIO),
    "stop": (TEXT | st.lists(TEXT, max_size=4), WORDS | st.lists(WORDS, max_size=5)),
    "stop_token_ids": (st.lists(IDS, max_size=3), st.lists(NEAR_IDS, max_size=3)),
    "ignore_eos": (st.booleans(), RATIO),
    "temperature": (st.floats(0, 2), RATIO),
    "top_p": (st.floats(0.01, 1), RATIO),
    "top_k": (st.integers(1, 25), SMALL),
    "min_p": (SHARE, RATIO),
    "repetition_penalty": (st.floats(0.1, 2), RATIO),
    "presence_penalty": (PENALTY, st.floats(-3, 3)),
    "frequency_penalty": (PENALTY, st.floats(-3, 3)),
    "logit_bias": (
        st.dictionaries(IDS.map(str), st.floats(-100, 100), max_size=3),
        st.dictionaries(NEAR_IDS.map(str) | WORDS, st.floats(-101, 101), max_size=3),
    ),
    "min_tokens": (st.integers(0, 1), SMALL),
    "seed": (st.integers(-(2**63), 2**63 - 1), st.integers(-(2**65), 2**65)),
    "max_tokens": (st.integers(1, 25), SMALL),
    "user": (TEXT, WORDS),
    "response_format": (st.just({"type": "text"}), ANYTHING),
}
PROMPTS = st.lists(IDS, min_size=1, max_size=16)
MESSAGES = {
    "role": (st.sampled_from(["user", "system"]), st.sampled_from(["user", "system", "robot"])),
    "content": (TEXT, WORDS | ANYTHING),
}


def messages(which: int, least: int) -> Any:
    message = {name: values[which] for name, values in MESSAGES.items()}
    return st.lists(st.fixed_dictionaries(message), min_size=least, max_size=3)


BODIES = {
    COMPLETIONS: (
        {
            "prompt": (
                TEXT | PROMPTS | st.lists(TEXT | PROMPTS, min_size=1, max_size=1),
                WORDS | st.lists(WORDS | SMALL | st.lists(NEAR_IDS, max_size=18), max_size=4),
            )
        },
        {
            "logprobs": (st.integers(0, 5), SMALL | st.booleans()),
            "echo": (st.booleans(), RATIO),
            "best_of": (st.none(), SMALL),
            "suffix": (st.none(), WORDS),
        },
    ),
    CHAT: (
        {"messages": (messages(0, 1), messages(1, 0))},
        {
            "logprobs": (st.booleans(), SMALL),
            "top_logprobs": (st.none(), SMALL),
            "max_completion_tokens": (st.none(), SMALL),
        },
    ),
}


def bodies(url: str) -> Any:
    """Requests of the right form: a half has right values but for one field now and then, of the
    others every value may be beyond its limits."""
    needed, optional = BODIES[url]
    fields = {**COMMON, **optional, **needed, "model": (st.just(MODEL), WORDS)}
    few = st.sets(st.sampled_from(sorted({**COMMON, **optional})), max_size=5)

    def of(names: set[str], which: int) -> Any:
        chosen = {name: fields[name][which] for name in [*needed, *sorted(names)]}
        return st.fixed_dictionaries({"model": st.just(MODEL), **chosen})

    def with_one_wrong(body: dict[str, Any]) -> Any:
        near = st.sampled_from(sorted(fields)).flatmap(
            lambda name: st.tuples(st.just(name), fields[name][1])
        )
        far = st.tuples(st.sampled_from(sorted(fields)) | st.text(max_size=5), ANYTHING)
        return st.just(body) | (near | far).map(lambda pair: {**body, pair[0]: pair[1]})

    return few.flatmap(lambda names: of(names, 0).flatmap(with_one_wrong) | of(names, 1))


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
    @given(bodies(url))
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
