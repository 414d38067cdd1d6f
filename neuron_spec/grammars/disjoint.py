"""Whether no value can satisfy two branches of a `oneOf`, as far as it can be seen at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Resolve = Callable[[Any], Any]
"""A schema -> the one that its reference leads to."""


Constants = Callable[[Any], set[str] | None]
"""A schema -> its constants, see `_values`."""


def are_disjoint(branches: Sequence[Any], resolve: Resolve) -> bool:
    """Whether every two of them have other types, other constants, or other constants in a property
    that both require (a discriminator)."""
    read: dict[int, set[str] | None] = {}

    def constants(schema: Any) -> set[str] | None:
        """Read once, however many branches and pairs of them have it."""
        if id(schema) not in read:
            read[id(schema)] = _values(schema)
        return read[id(schema)]

    return all(_differ(one, other, resolve, constants) for one, other in combinations(branches, 2))


def _differ(one: Any, other: Any, resolve: Resolve, constants: Constants) -> bool:
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one is False or other is False
    if _have_no_common(_types(one), _types(other)):
        return True
    shared = sorted(set(_required(one)) & set(_required(other)))  # the same work in every run
    pairs = [(_property(one, name, resolve), _property(other, name, resolve)) for name in shared]
    return any(_have_no_common(constants(a), constants(b)) for a, b in [(one, other), *pairs])


def _have_no_common(one: set[str] | None, other: set[str] | None) -> bool:
    return one is not None and other is not None and one.isdisjoint(other)


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    """The types it allows, None for any; an integer is a number too."""
    given = schema.get("type")
    types = {given} if isinstance(given, str) else set(map(str, given or ()))
    return {"number" if name == "integer" else name for name in types} or None


def _values(schema: Any) -> set[str] | None:
    """Its constants as JSON text, None where it has other values; 1 and 1.0 are one."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return {_text(schema["const"])}
    enum = schema.get("enum")
    return {_text(value) for value in enum} if isinstance(enum, list) else None


def _text(value: Any) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_whole else value, sort_keys=True, default=str)


def _required(schema: Mapping[str, Any]) -> list[str]:
    """Names it requires where only an object can satisfy it."""
    names = schema.get("required")
    if schema.get("type") != "object" or not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


def _property(schema: Mapping[str, Any], name: str, resolve: Resolve) -> Any:
    properties = schema.get("properties")
    return resolve(properties.get(name)) if isinstance(properties, Mapping) else None
