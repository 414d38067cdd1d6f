"""Schemas: everything that would not be enforced is refused, with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_walks import SCHEMAS

from neuron_spec.errors import RequestError
from neuron_spec.grammars import disjoint
from neuron_spec.grammars.schema import MAX_CHARACTERS, MAX_DEPTH, MAX_SUBSCHEMAS, checked

Z = {"type": "integer"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = dict(Z)
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "number", "multipleOf": 2}, "multipleOf"),
    ({"type": "array", "items": Z, "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "items": Z, "contains": Z}, "contains"),
    ({"not": Z}, "not"),
    ({"if": Z, "then": Z}, "if"),
    (
        {"type": "object", "properties": {"a": {"type": "string", "secret": 1}}},
        "properties.a.secret",
    ),
    ({"type": "object", "patternProperties": {"^a$": Z}}, "patternProperties"),
    ({"type": "object", "propertyNames": {"pattern": "^a$"}}, "propertyNames"),
    ({"type": "object", "minProperties": 1}, "minProperties"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"type": "object", "required": ["z"]}, "required"),
    ({"type": "object", "properties": {"a": Z}, "required": [1]}, "required"),
    ({"type": "object", "properties": [Z]}, "properties"),
    ({"minimum": 3}, "minimum"),
    ({"properties": {"a": Z}}, "properties"),
    ({"type": "integer", "minLength": 3}, "minLength"),
    ({"type": "thing"}, "type"),
    ({"type": []}, "type"),
    ({"type": {"a": 1}}, "type"),
    ({"enum": []}, "enum"),
    ({"enum": "a"}, "enum"),
    ({"enum": [1, "a"], "type": "integer"}, "enum"),
    ({"const": True, "type": "integer"}, "const"),
    ({"const": 1, "minimum": 0}, "minimum"),
    ({"anyOf": []}, "anyOf"),
    ({"anyOf": [Z], "type": "string"}, "type"),
    ({"anyOf": [Z, {"type": "x"}]}, "anyOf.1.type"),
    ({"allOf": [Z, {"minimum": 3}]}, "allOf"),
    ({"allOf": [{"type": "string"}], "minLength": 3}, "minLength"),
    ({"oneOf": [Z, {"type": "number"}]}, "oneOf"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "oneOf"),
    ({"$ref": "#/$defs/x"}, "$ref"),
    ({"$ref": "https://example.org/schema"}, "$ref"),
    ({"$ref": 5}, "$ref"),
    ({"$ref": "#/$defs/x", "$defs": {"x": Z}, "minimum": 3}, "minimum"),
    ({"$defs": [Z]}, "$defs"),
    ({"$defs": {"x": {"type": "y"}}}, "$defs.x.type"),
    ({"type": "array", "items": [Z]}, "items"),
    ({"type": "array", "prefixItems": Z}, "prefixItems"),
    ({"type": "string", "format": "phone"}, "format"),
    ({"type": "string", "format": "date", "maxLength": 3}, "format and maxLength"),
    ({"type": "string", "pattern": "^a$", "minLength": 3}, "pattern and minLength"),
    ({"type": "string", "pattern": "a"}, "pattern"),
    ({"type": "string", "pattern": 5}, "pattern"),
]


@pytest.mark.parametrize(("schema", "place"), REFUSED)
def test_what_cannot_be_enforced_is_refused(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError) as caught:
        checked(schema, "the.field")
    assert caught.value.field == "the.field"
    assert place in caught.value.problem


def test_depth_and_number_have_bounds() -> None:
    checked(nested(MAX_DEPTH), "f")
    for schema in (
        nested(3 * MAX_DEPTH),
        nested(100_000),
        {"anyOf": [{"const": 1}] * MAX_SUBSCHEMAS},
        {"const": nested(2 * MAX_DEPTH)},
    ):
        with pytest.raises(RequestError, match="too deep|too large"):
            checked(schema, "f")


def test_annotations_go_and_arrays_say_what_they_hold() -> None:
    schema = {"title": "t", "type": "array", "default": [[[]]], "$schema": "s"}
    assert checked(schema, "f") == {"type": "array", "items": {}}
    assert checked({"description": "d"}, "f") == {}
    named_like = {"type": "object", "properties": {"title": {"title": "x", "type": "null"}}}
    assert checked(named_like, "f")["properties"] == {"title": {"type": "null"}}


def test_branches_that_cannot_overlap() -> None:
    kinds = [
        {"type": "object", "properties": {"k": {"enum": [k]}}, "required": ["k"]} for k in "ab"
    ]
    assert checked({"oneOf": kinds}, "f") == {"anyOf": kinds}
    kinds[0]["required"] = []
    with pytest.raises(RequestError, match="may overlap"):
        checked({"oneOf": kinds}, "f")
    assert "anyOf" in checked({"oneOf": [Z, {"type": ["string", "null"]}, {"type": "array"}]}, "f")


def test_comparing_branches_takes_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(disjoint, "_text", lambda value: read.append(value) or str(value))
    constants = [f"p{number}" for number in range(50)]
    branches = [
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/p"}, "b": {"const": number}},
            "required": ["a", "b"],
        }
        for number in range(40)
    ]
    checked({"oneOf": branches, "$defs": {"p": {"enum": constants}}}, "f")
    assert len(read) == len(constants) + len(branches)  # not once a pair
    read.clear()
    for count in (MAX_SUBSCHEMAS, 100):  # too many, or too large
        each = "x" * (MAX_CHARACTERS // 100)
        with pytest.raises(RequestError, match="too large"):
            checked({"oneOf": [{"const": f"{number}{each}"} for number in range(count)]}, "f")
    assert not read


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS)
def test_a_checked_schema_stays_as_it_is(schema: dict[str, Any]) -> None:
    once = checked(schema, "f")
    assert checked(once, "f") == once


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "enum", "anyOf", "oneOf", "$ref", "items", "properties", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(schema=st.dictionaries(st.sampled_from(["type", "$defs", "oneOf", "allOf", "a"]), JSON))
def test_anything_is_taken_or_refused(schema: dict[str, Any]) -> None:
    try:
        checked(schema, "f")
    except RequestError as error:
        assert error.field == "f"
