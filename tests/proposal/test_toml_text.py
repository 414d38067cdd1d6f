"""The written text: TOML of the same values, whatever names hold; comments beside or above."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.proposal import Proposal, toml_text
from neuron_spec.proposal.values import Value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)
VALUES: st.SearchStrategy[Any] = st.one_of(
    TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 9), max_size=3)
)


@given(TEXT, st.dictionaries(st.sampled_from("abc"), st.tuples(VALUES, TEXT), min_size=1))
def test_values_come_back(title: str, fields: dict[str, tuple[Any, str]]) -> None:
    table = {name: Value(value, reason) for name, (value, reason) in fields.items()}
    proposal = Proposal(title, {"one": table, "two": table})
    text = toml_text(proposal)
    assert tomllib.loads(text) == proposal.data
    assert text.endswith("\n") and not text.endswith("\n\n")


def test_reasons_stand_beside_their_values_or_above() -> None:
    table = {"k": Value(4, "short"), "name": Value("x", "long " * 30), "plain": Value(True)}
    lines = toml_text(Proposal("A title", {"draft": table})).splitlines()
    assert lines[0].startswith("# A title. Written by neuron-spec init")
    body = lines[lines.index("[draft]") + 1 :]
    assert body[0] == f"{'k = 4':<38} # short"
    assert body[1].startswith("# long long") and len(body[1]) <= 100
    assert body[3:] == ['name = "x"', "plain = true"]
