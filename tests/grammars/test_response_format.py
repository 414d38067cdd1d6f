"""`response_format` as the OpenAI API has it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuron_spec.errors import RequestError
from neuron_spec.grammars import schema_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def named(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **fields}}


def test_free_text() -> None:
    assert schema_of(None) is None
    assert schema_of({"type": "text"}) is None


@pytest.mark.parametrize(
    "fields", [{}, {"strict": True}, {"strict": False}, {"strict": None}, {"description": "d"}]
)
def test_schemas(fields: dict[str, Any]) -> None:
    text = schema_of(named(**fields))
    assert text is not None
    assert json.loads(text) == SCHEMA


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("json", "response_format"),
        ([], "response_format"),
        ({}, "response_format.type"),
        ({"type": "grammar"}, "response_format.type"),
        ({"type": ["text"]}, "response_format.type"),
        ({"type": "text", "json_schema": {}}, "response_format.json_schema"),
        ({"type": "json_object", "x": 1}, "response_format.x"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "schema": {}}, "response_format.schema"),
        (named(name=None), "response_format.json_schema.name"),
        (named(name="a b"), "response_format.json_schema.name"),
        (named(name="a" * 65), "response_format.json_schema.name"),
        (named(strict="yes"), "response_format.json_schema.strict"),
        (named(description=1), "response_format.json_schema.description"),
        (named(schema=None), "response_format.json_schema.schema"),
        (named(schema="{}"), "response_format.json_schema.schema"),
        (named(schema={"multipleOf": 1}), "response_format.json_schema.schema"),
        (named(schema={"const": {1, 2}}), "response_format.json_schema.schema"),
        (named(other=1), "response_format.json_schema.other"),
    ],
)
def test_what_is_wrong_is_named(given: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        schema_of(given)
    assert caught.value.field == field
