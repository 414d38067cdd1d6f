"""The part of JSON Schema that can be enforced token by token; all else is refused by name.

What xgrammar would read over or take for something wider (its `json_schema_converter.cc`) never
reaches it, so that every complete output is valid under the schema as it was sent. It may be
narrower: an object has its named properties alone, in their order, unless `additionalProperties`
says otherwise. A `format` is the form of a text: a date may be the 31st of February.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from neuron_spec.errors import RequestError, shown
from neuron_spec.grammars.disjoint import are_disjoint
from neuron_spec.grammars.patterns import pattern_fault

MAX_CHARACTERS = 64 * 1024
"""Of the schema as JSON, without its annotations."""
MAX_DEPTH = 32
MAX_SUBSCHEMAS = 500
FORMATS = frozenset(
    (
        *("date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4", "ipv6"),
        *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    )
)
_EMAIL = r"^[\w.%+\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)+$"
"""xgrammar's own `email` has quoted names, in which it lets control characters through."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
KEYWORDS: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "boolean": (),
    "null": (),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}
"""What a schema of each type may say."""
_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "$comment", "$schema"),
        *("deprecated", "readOnly", "writeOnly", "discriminator"),
    )
)
_DEFINITIONS = ("$defs", "definitions")
_FORMS = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")

Schema = Any
"""An object, or true or false."""


def checked(schema: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The schema without its annotations, and with `items` where an array may hold anything.

    Raises:
        RequestError: a keyword or value that cannot be enforced; `field` is the name it gives.
    """
    return _Reader(schema, field).whole()


class _Reader:
    """Reads one schema from its root down."""

    def __init__(self, root: Mapping[str, Any], field: str) -> None:
        self._root, self._field, self._num_read = root, field, 0
        self._exclusive: list[tuple[tuple[str, ...], Sequence[Schema]]] = []  # every oneOf
        self._definitions = {
            key: self._object(root[key], (key,)) for key in _DEFINITIONS if key in root
        }

    def whole(self) -> dict[str, Any]:
        body = {key: v for key, v in self._root.items() if key not in self._definitions}
        definitions = {
            key: {name: self._schema(own, (key, name)) for name, own in given.items()}
            for key, given in self._definitions.items()
        }
        whole = {**self._schema(body, ()), **definitions}
        self._check_size(whole)  # before branches are compared, each with each
        for path, branches in self._exclusive:
            self._check_exclusive(path, branches)
        return whole

    def _schema(self, given: Schema, path: tuple[str, ...]) -> Schema:
        self._num_read += 1
        if self._num_read > MAX_SUBSCHEMAS:
            raise self._refused((), "too large", expected=f"at most {MAX_SUBSCHEMAS} parts")
        self._check_depth(path)
        if isinstance(given, bool):
            return {} if given else given
        said = {k: v for k, v in self._object(given, path).items() if k not in _ANNOTATIONS}
        forms = [key for key in _FORMS if key in said]
        if not forms:
            return self._typed(said, path) if said else {}
        form = forms[0]
        beside = {"type"} if form in ("enum", "const") else set()
        self._refuse_others(said, {form, *beside}, path, beside=form)
        return self._READERS[form](self, said, path)

    def _reference(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        if self._target(said["$ref"]) is None:
            expected = "#, #/$defs/… or #/definitions/… of this schema"
            raise self._refused((*path, "$ref"), "leads nowhere", said["$ref"], expected)
        return dict(said)

    def _union(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        ((key, given),) = said.items()
        branches = self._list(given, (*path, key))
        if key == "allOf" and len(branches) > 1:
            raise self._refused((*path, key), "more than one cannot be joined")
        if key == "oneOf":
            self._exclusive.append(((*path, key), branches))
        read = [self._schema(own, (*path, key, str(i))) for i, own in enumerate(branches)]
        return read[0] if key == "allOf" else {"anyOf": read}

    def _values(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        key = "enum" if "enum" in said else "const"
        values = self._list(said[key], (*path, key)) if key == "enum" else [said[key]]
        types = self._types(said["type"], path) if "type" in said else None
        for value in values:
            self._check_value_depth(value, (*path, key))
            if types is not None and not any(_is_of(value, name) for name in types):
                raise self._refused((*path, key), "not of the type beside it", value, types)
        return {key: said[key]}

    def _typed(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        if "type" not in said:
            key = next(iter(said))
            raise self._refused((*path, key), "cannot be enforced without its type beside it")
        types = self._types(said["type"], path)
        known = {keyword for name in types for keyword in KEYWORDS[name]}
        self._refuse_others(said, {"type", *known}, path, beside="type")
        read = dict(said)
        for key, reader in self._PARTS.items():
            if key in said:
                read[key] = reader(self, said, (*path, key))
        if "array" in types and not {"items", "prefixItems"} & said.keys():
            read["items"] = {}
        self._check_lengths(said, path)
        if read.get("format") == "email":
            read["pattern"] = _EMAIL
            del read["format"]
        return read

    def _properties(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        named = self._object(said["properties"], path)
        return {name: self._schema(own, (*path, name)) for name, own in named.items()}

    def _required(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        known = said.get("properties", {})
        for name in self._list(said["required"], path, may_be_empty=True):
            if not isinstance(name, str) or name not in known:
                raise self._refused(path, "not among properties", name)
        return said["required"]

    def _rest(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        """`items` and `additionalProperties`, which may be false."""
        given = said[path[-1]]
        return given if isinstance(given, bool) else self._schema(given, path)

    def _first_items(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        given = self._list(said["prefixItems"], path)
        return [self._schema(own, (*path, str(i))) for i, own in enumerate(given)]

    def _pattern(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        pattern = said["pattern"]
        fault = pattern_fault(pattern) if isinstance(pattern, str) else "not text"
        if fault:
            raise self._refused(path, fault, pattern)
        return pattern

    def _format(self, said: Mapping[str, Any], path: tuple[str, ...]) -> Schema:
        if said["format"] not in FORMATS:
            raise self._refused(path, "unknown", said["format"], ", ".join(sorted(FORMATS)))
        return said["format"]

    def _check_lengths(self, said: Mapping[str, Any], path: tuple[str, ...]) -> None:
        forms = [key for key in ("pattern", "format") if key in said]
        lengths = [key for key in ("minLength", "maxLength") if key in said]
        if len(forms) > 1 or (forms and lengths):
            both = " and ".join([*forms, *lengths])
            raise self._refused(path, f"{both} cannot be enforced together")

    def _types(self, given: object, path: tuple[str, ...]) -> list[str]:
        types = given if isinstance(given, list) else [given]
        if not types or any(not isinstance(t, str) or t not in KEYWORDS for t in types):
            raise self._refused((*path, "type"), "no such type", given, ", ".join(KEYWORDS))
        return [str(name) for name in types]

    def _resolved(self, given: Schema) -> Schema:
        """The schema that a reference leads to; itself where it is none."""
        seen = 0
        while isinstance(given, Mapping) and "$ref" in given and seen < MAX_DEPTH:
            given, seen = self._target(given["$ref"]), seen + 1
        return given

    def _target(self, reference: object) -> Schema:
        """What a `$ref` names, or None."""
        if reference == "#":
            return self._root
        parts = str(reference).split("/")
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in self._definitions:
            return None
        name = unquote(parts[2]).replace("~1", "/").replace("~0", "~")
        return self._definitions[parts[1]].get(name)

    def _check_size(self, whole: Schema) -> None:
        size = len(json.dumps(whole, default=str, skipkeys=True))
        if size > MAX_CHARACTERS:
            found, expected = f"{size} characters", f"at most {MAX_CHARACTERS}"
            raise RequestError("too large", field=self._field, found=found, expected=expected)

    def _check_exclusive(self, path: tuple[str, ...], branches: Sequence[Schema]) -> None:
        resolved = [self._resolved(branch) for branch in branches]
        if not are_disjoint(resolved, self._resolved):
            raise self._refused(
                path,
                "its branches may overlap",
                expected="other types or other constants in a required property, or anyOf",
            )

    def _check_depth(self, path: tuple[str, ...]) -> None:
        if len(path) > 2 * MAX_DEPTH:  # a keyword and a name a level
            raise self._refused((), "nested too deep", expected=f"at most {MAX_DEPTH} levels")

    def _check_value_depth(self, value: object, path: tuple[str, ...], depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise self._refused(path, "nested too deep", expected=f"at most {MAX_DEPTH} levels")
        parts = value.values() if isinstance(value, Mapping) else value
        if isinstance(value, (Mapping, list)):
            for part in parts:  # type: ignore[attr-defined]
                self._check_value_depth(part, path, depth + 1)

    def _refuse_others(
        self, said: Mapping[str, Any], known: set[str], path: tuple[str, ...], *, beside: str
    ) -> None:
        for key in said:
            if key not in known:
                raise self._refused((*path, key), f"cannot be enforced beside {beside}")

    def _object(self, given: object, path: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(given, Mapping) or any(not isinstance(key, str) for key in given):
            raise self._refused(path, "not an object", given)
        return given

    def _list(
        self, given: object, path: tuple[str, ...], *, may_be_empty: bool = False
    ) -> Sequence[Any]:
        if not isinstance(given, list) or not (given or may_be_empty):
            raise self._refused(path, "not a list with entries", given)
        return given

    def _refused(
        self, path: tuple[str, ...], problem: str, found: object = None, expected: object = None
    ) -> RequestError:
        place = ".".join(path) or "the schema"
        quoted = None if found is None else shown(found)
        return RequestError(
            f"{shown(place)}: {problem}", field=self._field, found=quoted, expected=expected
        )

    _READERS: dict[str, Callable[[_Reader, Mapping[str, Any], tuple[str, ...]], Schema]] = {
        "$ref": _reference,
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), _union),
        **dict.fromkeys(("enum", "const"), _values),
    }
    _PARTS: dict[str, Callable[[_Reader, Mapping[str, Any], tuple[str, ...]], Schema]] = {
        "properties": _properties,
        "required": _required,
        "additionalProperties": _rest,
        "items": _rest,
        "prefixItems": _first_items,
        "pattern": _pattern,
        "format": _format,
    }


def _is_of(value: object, type_name: str) -> bool:
    """Whether a JSON value has a type; 1.0 is an integer, true is none."""
    if isinstance(value, bool) or value is None:
        return type_name == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return type_name == "number" or (type_name == "integer" and float(value).is_integer())
    return isinstance(value, {"string": str, "array": list, "object": Mapping}.get(type_name, ()))
