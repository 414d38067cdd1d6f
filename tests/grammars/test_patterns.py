"""Patterns that a grammar can stand for, and those it cannot."""

from __future__ import annotations

import pytest

from neuron_spec.grammars.patterns import pattern_fault


@pytest.mark.parametrize(
    "pattern",
    ["^$", "^a+$", "^(?:a|b)*?$", r"^\d{1,3}\.\w$", "^[^a-z]$", r"^\u00e9\x41[\u4e00-\u9fff]$",
     "^.*é.*$", r"^\$\^$"],
)  # fmt: skip
def test_taken(pattern: str) -> None:
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    ["", "^", "a", "^a", "a$", "^a$|^b$", "^a^b$", '^"$', r"^\\$", r"^\n$", "^\n$", r"^\x22$",
     r"^\u005c$", r"^\u0000$", r"^\bа$", r"^(a)\1$", "^(?!a)b$", "^(?i:a)$", "^(?P<x>a)$",
     r"^\p{L}$", "^[$]$"],
)  # fmt: skip
def test_refused(pattern: str) -> None:
    assert pattern_fault(pattern)
