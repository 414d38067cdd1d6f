"""Compiled schemas: what they allow is valid JSON under the schema, and compiling has bounds."""

from __future__ import annotations

import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_walks import COMPILER, END, FIRST_BYTE, SCHEMAS, ByteTokens, does_accept, walk

from neuron_spec.errors import RequestError
from neuron_spec.grammars import Grammar, SchemaCompiler, compiler, schema_of
from neuron_spec.grammars.schema import FORMATS


def grammar_of(schema: dict[str, Any]) -> Grammar:
    text = schema_of({"type": "json_schema", "json_schema": {"name": "test", "schema": schema}})
    assert text is not None
    return COMPILER.compile(text)


def check(schema: dict[str, Any], text: bytes) -> None:
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_every_output_is_valid(schema: dict[str, Any], seed: int) -> None:
    check(schema, walk(grammar_of(schema), seed))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_is_enforced(name: str) -> None:
    grammar = grammar_of({"type": "string", "format": name})
    assert not does_accept(grammar, '"{ %"')
    for seed in range(20):
        text, matcher = walk(grammar, seed), grammar.begin()
        json.loads(text)
        for byte in text:
            assert not matcher.allowed()[FIRST_BYTE : FIRST_BYTE + 0x20].any()
            assert matcher.accept(FIRST_BYTE + byte)


REFERENCES: dict[str, Any] = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/a~1b"}},
    "required": ["value"],
    "$defs": {"a/b": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
}
SHAPES: dict[str, Any] = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {
        name: {
            "type": "object",
            "properties": {"kind": {"const": name, "type": "string"}, "age": {"type": "integer"}},
            "required": ["kind", "age"],
        }
        for name in ("Cat", "Dog")
    },
}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (REFERENCES, '{"value": 1, "next": {"value": 2}}', '{"value": 1, "next": 3}'),
        (SHAPES, '{"kind": "Cat", "age": 3}', '{"kind": "Cow", "age": 3}'),
        ({"allOf": [{"type": "string", "minLength": 2}]}, '"ab"', '"a"'),
        ({"type": ["integer", "null"], "minimum": 3}, "null", "2"),
        ({"type": "array"}, '[1, {"a": [null]}]', "1"),
        ({"type": "array", "items": False}, "[]", "[1]"),
        ({"type": "object"}, '{"a": {"b": []}}', "[]"),
        ({}, '"anything"', "anything"),
        ({"title": "T", "description": "d", "examples": [1]}, "[1.5e3]", "nothing"),
        ({"type": "object", "properties": {"a": True}}, '{\n  "a" : [ ]\n}', '{"b": 1}'),
    ],
)
def test_forms_of_schemas(schema: dict[str, Any], valid: str, invalid: str) -> None:
    grammar = grammar_of(schema)
    assert does_accept(grammar, valid)
    assert not does_accept(grammar, invalid)
    for seed in range(5):
        check(schema, walk(grammar, seed))


def test_json_objects() -> None:
    text = schema_of({"type": "json_object"})
    assert text is not None
    grammar = COMPILER.compile(text)
    assert does_accept(grammar, '{"a": [1, "b", null]}')
    assert not does_accept(grammar, "[1]")
    assert all(isinstance(json.loads(walk(grammar, seed)), dict) for seed in range(20))


def test_whitespace_has_a_bound() -> None:
    grammar = grammar_of({"type": "array"})
    room = compiler.MAX_WHITESPACE
    assert does_accept(grammar, f"[{' ' * room}1]")
    assert not does_accept(grammar, f"[{' ' * (room + 1)}1]")


def test_the_end_comes_when_the_output_is_complete_and_special_ids_never() -> None:
    matcher = grammar_of({"type": "integer"}).begin()
    assert not matcher.allowed()[END]
    assert matcher.accept(FIRST_BYTE + ord("7"))
    assert matcher.allowed()[END]
    assert not matcher.allowed()[[0, 1, -1, -5]].any()
    assert len(matcher.allowed()) == len(ByteTokens().vocabulary())
    assert matcher.accept(END)
    assert matcher.is_ended
    matcher.rollback(1)
    assert not matcher.is_ended


def refusal(schema: str, own: SchemaCompiler = COMPILER) -> RequestError:
    with pytest.raises(RequestError) as caught:
        own.compile(schema)
    return caught.value


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('{"type": "string", "minLength": 5, "maxLength": 2}', "minLength 5 is greater"),
        ('{"$ref": "#"}', "Circular"),
        ('{"type": "string", "pattern": "^(a$"}', "Parenthesis|parenthes|\\("),
        ('{"type": "string", "minLength": "x"}', "minLength must be an integer"),
        ("not JSON", "JSON"),
        (json.dumps({"type": "integer", "minimum": -(10**400)}), "without a reason"),
    ],
)
def test_xgrammars_reasons_are_told_without_its_source(schema: str, reason: str) -> None:
    error = refusal(schema)
    assert error.field == "response_format.json_schema.schema"
    assert error.problem.startswith("no grammar: ")
    assert re.search(reason, error.problem, re.IGNORECASE)
    assert ".cc:" not in error.problem.splitlines()[0]
    assert error.__cause__ is not None


def test_size_and_time_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    long = json.dumps({"enum": ["x" * compiler.MAX_CHARACTERS]})
    assert "too large" in refusal(long).problem
    slow = SchemaCompiler(ByteTokens(), timeout_s=0.05)
    monkeypatch.setattr(compiler, "_compiled", lambda *_: time.sleep(0.5))
    assert "takes too long" in refusal("{}", slow).problem
    for _ in range(compiler.MAX_COMPILES - 1):
        refusal("{}", slow)
    assert "other schemas" in refusal("{}", slow).problem
    monkeypatch.undo()
    time.sleep(0.6)  # those left behind have ended
    assert slow.compile("{}").begin() is not None


def test_many_threads_share_one_compiler() -> None:
    own = SchemaCompiler(ByteTokens())
    schemas = [json.dumps({"const": number}) for number in range(8)] * 2
    with ThreadPoolExecutor(8) as pool:
        grammars = list(pool.map(own.compile, schemas))
    assert [walk(each, 0).decode() for each in grammars] == [str(n) for n in range(8)] * 2


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoEnd(ByteTokens):
        stop_token_ids: frozenset[int] = frozenset()

    error = refusal("{}", SchemaCompiler(NoEnd()))
    assert (error.field, "end-of-sequence" in error.problem) == ("response_format", True)
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    error = refusal("{}", SchemaCompiler(ByteTokens()))
    assert error.mend == "pip install 'neuron-spec[structured]'"


@pytest.mark.parametrize("schema", [{"type": "string", "minLength": 1}, {"type": "string"}, {}])
def test_no_control_character_comes_bare(schema: dict[str, Any]) -> None:
    matcher = grammar_of(schema).begin()
    assert matcher.accept(FIRST_BYTE + ord('"'))
    assert not matcher.allowed()[FIRST_BYTE : FIRST_BYTE + 0x20].any()
