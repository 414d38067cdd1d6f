"""JSON that a compiled schema allows, byte by byte, and schemas to compile."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from neuron_spec.grammars import Grammar, SchemaCompiler

END = 2
FIRST_BYTE = 3  # ids below it are special


class ByteTokens:
    """One token a byte."""

    stop_token_ids = frozenset({END})

    def vocabulary(self) -> list[bytes]:
        return [b""] * FIRST_BYTE + [bytes([byte]) for byte in range(256)] + [b""] * 5


COMPILER = SchemaCompiler(ByteTokens())
_CLOSING = [FIRST_BYTE + byte for byte in b'""}]']  # a quote twice: it is what ends most


def walk(grammar: Grammar, seed: int, *, restless: int = 40) -> bytes:
    """Random allowed tokens up to the end; after `restless` of them it hurries there."""
    choose, matcher, text = random.Random(seed), grammar.begin(), bytearray()
    for count in range(5000):
        ids: list[int] = matcher.allowed().nonzero().flatten().tolist()
        closing = [token for token in (END, *_CLOSING) if token in ids]
        hurries = count > restless or choose.random() < 0.3
        token = choose.choice(closing if hurries and closing else ids)
        assert matcher.accept(token)
        if token == END:
            return bytes(text)
        text.append(token - FIRST_BYTE)
    raise AssertionError(f"no end: {bytes(text[:200])!r}")


def does_accept(grammar: Grammar, text: str) -> bool:
    matcher = grammar.begin()
    return all(matcher.accept(byte + FIRST_BYTE) for byte in text.encode()) and matcher.accept(END)


NAMES = st.text(st.sampled_from('ab_é"\\ '), min_size=1, max_size=3)
CONSTANTS = st.one_of(
    st.none(), st.booleans(), st.integers(-50, 50), st.sampled_from([0.5, -1.25, 1e10]), NAMES
)


def _ordered(bounds: tuple[str, str], values: st.SearchStrategy[int]) -> Any:
    low, high = bounds

    def named(pair: tuple[int, int]) -> dict[str, int]:
        return {low: min(pair), high: max(pair)}

    return st.one_of(
        st.just({}),
        values.map(lambda value: {low: value}),
        values.map(lambda value: {high: value}),
        st.tuples(values, values).map(named),
    )


def _typed(name: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(
        lambda given: {"type": name, **{k: v for part in given for k, v in part.items()}}
    )


PATTERNS = [
    "^[a-z]{2,4}$",
    "^(ab|c)*d$",
    r"^\d{3}-\w+$",
    "^.{0,3}$",
    "^[^a]*$",
    r"^\S\s\D$",
    "^é+$",
]
_TEXTS = st.one_of(
    _typed("string", _ordered(("minLength", "maxLength"), st.integers(0, 6))),
    st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
)
_NUMBERS = st.one_of(
    _typed("integer", _ordered(("minimum", "maximum"), st.integers(-300, 300))),
    _typed("number", _ordered(("minimum", "maximum"), st.integers(-30, 30))),
    st.integers(-9, 9).map(lambda low: {"type": "integer", "exclusiveMinimum": low}),
)
_SIMPLE = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    _TEXTS,
    _NUMBERS,
    st.lists(CONSTANTS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    CONSTANTS.map(lambda value: {"const": value}),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def of(draw_: tuple[dict[str, Any], list[bool], Any]) -> dict[str, Any]:
        properties, needed, rest = draw_
        required = [name for name, is_needed in zip(properties, needed, strict=False) if is_needed]
        schema = {"type": "object", "properties": properties, "required": required}
        return schema if rest is None else {**schema, "additionalProperties": rest}

    named = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    needed = st.lists(st.booleans(), min_size=3, max_size=3)
    rest = st.sampled_from([None, False])
    maps = inner.map(lambda own: {"type": "object", "additionalProperties": own})
    return st.one_of(st.tuples(named, needed, rest).map(of), maps)


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    lengths = _ordered(("minItems", "maxItems"), st.integers(0, 3))
    return st.one_of(
        _typed("array", inner.map(lambda own: {"items": own}), lengths),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda first: {"type": "array", "prefixItems": first, "minItems": len(first)}
        ),
    )


SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    _SIMPLE,
    lambda inner: st.one_of(
        _objects(inner),
        _arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=6,
)
