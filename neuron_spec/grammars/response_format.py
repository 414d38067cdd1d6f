"""The OpenAI API's `response_format` -> the JSON Schema that an output is held to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from neuron_spec.errors import RequestError, shown
from neuron_spec.grammars.schema import checked

FIELD = "response_format"
SCHEMA_FIELD = f"{FIELD}.json_schema.schema"
_TYPES = ("text", "json_object", "json_schema")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def schema_of(response_format: object) -> str | None:
    """The schema as JSON text; None for free text.

    `strict` may be true, false or left out: the output is held to the schema in every case.

    Raises:
        RequestError: not a response format, or a schema that cannot be enforced; `field` names what
            is wrong.
    """
    if response_format is None:
        return None
    given = _object(response_format, FIELD)
    kind = given.get("type")
    if kind not in _TYPES:
        raise _wrong(f"{FIELD}.type", kind, " | ".join(_TYPES))
    _refuse_others(given, {"type", "json_schema"} if kind == "json_schema" else {"type"}, FIELD)
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    return _schema(_object(given.get("json_schema"), f"{FIELD}.json_schema"))


def _schema(given: Mapping[str, Any]) -> str:
    where = f"{FIELD}.json_schema"
    _refuse_others(given, {"name", "schema", "strict", "description"}, where)
    name, description = given.get("name"), given.get("description")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise _wrong(f"{where}.name", name, "1 … 64 letters, digits, '_' or '-'")
    if not isinstance(description, (str, type(None))):
        raise _wrong(f"{where}.description", description, "text")
    if not isinstance(given.get("strict"), (bool, type(None))):
        raise _wrong(f"{where}.strict", given["strict"], "true or false")
    schema = checked(_object(given.get("schema"), SCHEMA_FIELD), SCHEMA_FIELD)
    try:
        return json.dumps(schema)
    except TypeError as error:
        raise RequestError(f"not JSON: {error}", field=SCHEMA_FIELD) from None


def _object(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(field, value, "an object")
    return value


def _refuse_others(given: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise RequestError(
                "no such field", field=f"{where}.{key}", expected=", ".join(sorted(known))
            )


def _wrong(field: str, found: object, expected: str) -> RequestError:
    return RequestError("not understood", field=field, found=shown(found), expected=expected)
