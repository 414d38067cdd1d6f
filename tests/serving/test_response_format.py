"""`response_format` over HTTP: the official client, streams, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
import tiny
from fastapi.testclient import TestClient
from pydantic import BaseModel
from served import CHAT, MODEL, error_of, live

from neuron_spec import compile_model, load, load_spec, prepare
from neuron_spec.engine import Session
from neuron_spec.grammars import Grammar, SchemaCompiler
from neuron_spec.serving.app import create_session_app
from neuron_spec.serving.choices import requests_of
from neuron_spec.serving.wire import CompletionRequest

MESSAGES: Any = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}},
        "kind": {"enum": ["cat", "dog", None]},
    },
    "required": ["name", "ages", "kind"],
    "additionalProperties": False,
}


class Pet(BaseModel):
    name: str
    kind: Literal["cat", "dog"]
    is_old: bool | None


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("served")
    tiny.write_target(folder / "target")
    tiny.write_eagle(folder / "eagle")
    path = tiny.write_spec(
        folder / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        verification={"rule": "rejection"},
        shape={"max_prompt_tokens": 64, "max_total_tokens": 250, "batch_size": 4},
    )
    spec = load_spec(path)
    artifact = compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")
    return load(artifact.directory)


@pytest.fixture(scope="module")
def client(session: Session) -> Iterator[openai.OpenAI]:
    with live(create_session_app(session, model_name=MODEL)) as server:
        base_url = f"{server.url}/v1"
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            yield client


@pytest.fixture(scope="module")
def closing(session: Session) -> dict[str, int]:
    """What makes a model with random weights come to an end."""
    return {str(token): 6 for token in session.tokenizer.encode('"]}')}


def json_schema(schema: Any, **fields: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, **fields}}


def check(schema: dict[str, Any], text: str) -> None:
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_the_official_client_gets_valid_json(client: openai.OpenAI, closing: Any) -> None:
    done = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=6, seed=3, logit_bias=closing, temperature=1.3,
        response_format=json_schema(SCHEMA, strict=True),
    )  # fmt: skip
    finished = [c for c in done.choices if c.finish_reason == "stop"]
    assert len(finished) >= 3
    for choice in finished:
        check(SCHEMA, choice.message.content or "")


def test_a_stream_is_the_same(client: openai.OpenAI, closing: Any) -> None:
    options: Any = {
        "model": MODEL, "messages": MESSAGES, "temperature": 0, "logit_bias": closing,
        "response_format": json_schema(SCHEMA),
    }  # fmt: skip
    whole = client.chat.completions.create(**options).choices[0]
    pieces = list(client.chat.completions.create(**options, stream=True))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.message.content
    assert whole.finish_reason == "stop"
    check(SCHEMA, text)


def test_parse_takes_a_pydantic_model(client: openai.OpenAI, closing: Any) -> None:
    done = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Pet, logit_bias=closing, seed=1
    )
    assert isinstance(done.choices[0].message.parsed, Pet)


def test_json_objects_and_completions(client: openai.OpenAI, closing: Any) -> None:
    done = client.completions.create(
        model=MODEL, prompt="hi", max_tokens=150, logit_bias=closing, seed=1,
        extra_body={"response_format": {"type": "json_object"}},
    ).choices[0]  # fmt: skip
    assert done.finish_reason == "stop"
    assert isinstance(json.loads(done.text), dict)


def test_the_limit_cuts(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=5,
        response_format=json_schema(SCHEMA),
    ).choices[0]  # fmt: skip
    assert done.finish_reason == "length"
    assert (done.message.content or "").startswith("{")


def test_requests_with_and_without_a_schema_run_side_by_side(session: Session) -> None:
    """Greedy output does not depend on who runs beside it, nor on the draft."""
    closing = dict.fromkeys(session.tokenizer.encode('"]}'), 6.0)
    options: dict[str, Any] = {"logit_bias": closing, "max_new_tokens": 60}
    held = {**options, "response_format": json_schema(SCHEMA)}
    free, schema = session.generate("hi", **options), session.generate("hi", **held)
    assert session.generate("hi", speculate=False, **held).token_ids == schema.token_ids
    loop = session.loop()
    requests = [session.request("hi", **(held if i % 2 else options)) for i in range(4)]
    ids = [loop.submit(request) for request in requests]
    texts: dict[int, str] = dict.fromkeys(ids, "")
    for event in loop.run():
        texts[event.request_id] += event.text
    assert list(texts.values()) == [free.text, schema.text] * 2


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "grammar"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 4}, "min_tokens", "schema"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "end"),
        ({"response_format": json_schema(None)}, "response_format.json_schema.schema", "object"),
        (
            {"response_format": json_schema({"type": "array", "uniqueItems": True})},
            "response_format.json_schema.schema",
            "uniqueItems",
        ),
        (
            {"response_format": json_schema({"type": "string", "minLength": 3, "maxLength": 1})},
            "response_format.json_schema.schema",
            "minLength 3 is greater",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    session: Session, fields: dict[str, Any], param: str, words: str
) -> None:
    with TestClient(create_session_app(session, model_name=MODEL)) as client:
        response = client.post(CHAT, json={"model": MODEL, "messages": MESSAGES, **fields})
        error = error_of(response, 400)
        assert error["param"] == param
        assert words in error["message"]
        after = client.post(CHAT, json={"model": MODEL, "messages": MESSAGES, "max_tokens": 2})
        assert after.status_code == 200


def test_generate_takes_a_schema_file(session: Session, tmp_path: Path) -> None:
    from neuron_spec.cli.generate import _response_format
    from neuron_spec.errors import UserError

    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"enum": ["yes", "no"]}))
    result = session.generate("hi", response_format=_response_format(path))
    assert result.text in ('"yes"', '"no"')
    assert result.finish_reason == "stop"
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(UserError, match="not JSON"):
            _response_format(path)
    with pytest.raises(UserError, match="cannot be read"):
        _response_format(tmp_path / "none.json")


def test_a_schema_is_compiled_once_a_request(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_schema = SchemaCompiler.compile

    def counted(self: SchemaCompiler, schema: str) -> Grammar:
        compiled.append(schema)
        return compile_schema(self, schema)

    monkeypatch.setattr(SchemaCompiler, "compile", counted)
    wire = CompletionRequest(
        model=MODEL, prompt=["hi", "you"], n=2, seed=1, response_format={"type": "json_object"}
    )
    requests = requests_of(wire, session)
    assert len(compiled) == 1
    prompts = [session.tokenizer.encode(prompt) for prompt in ("hi", "you")]
    assert [request.prompt_ids for request in requests] == [p for p in prompts for _ in range(2)]
    assert all(request.grammar is requests[0].grammar for request in requests)
