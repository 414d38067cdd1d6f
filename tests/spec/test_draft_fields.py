"""Fields that belong to one draft method, and their bounds."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from neuron_spec.spec.schema import DraftSpec


def fault_of(**draft: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        DraftSpec.model_validate(draft)
    return str(caught.value)


def test_defaults() -> None:
    draft = DraftSpec(method="suffix")
    found = (draft.suffix_depth, draft.suffix_min_probability, draft.suffix_answers)
    assert found == (24, 0.1, 1000)
    assert draft.vocabulary == "same"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix_depth", 1),
        ("suffix_depth", 257),
        ("suffix_min_probability", -0.1),
        ("suffix_min_probability", 1.1),
        ("suffix_answers", -1),
        ("suffix_answers", 1_000_001),
        ("exit_layer", 0),
        ("vocabulary", "union"),
    ],
)
def test_bounds(field: str, value: Any) -> None:
    assert field in fault_of(method="suffix", **{field: value})


@pytest.mark.parametrize("method", ["suffix", "mtp", "early-exit"])
def test_methods_that_draft_without_a_model_take_none(method: str) -> None:
    draft = {"method": method, "exit_layer": 1 if method == "early-exit" else None}
    assert DraftSpec.model_validate(draft).model is None
    assert "draft.model is given" in fault_of(**draft, model="x")


def test_the_exit_belongs_to_early_exit() -> None:
    assert "'early-exit' needs draft.exit_layer" in fault_of(method="early-exit")
    assert "draft.exit_layer is given" in fault_of(method="suffix", exit_layer=3)


def test_an_intersection_is_of_a_draft_model_and_drafts_greedy_chains() -> None:
    draft = {"method": "model", "model": "x", "vocabulary": "intersection"}
    assert DraftSpec.model_validate(draft).vocabulary == "intersection"
    assert "greedy chains" in fault_of(**draft, sampled=True)
    assert "greedy chains" in fault_of(**draft, tree=[[0], [1]])
    assert "greedy chains" in fault_of(**draft, dynamic_tree={"depth": 2, "top_k": 2})
    assert "has no tokenizer" in fault_of(method="suffix", vocabulary="intersection")


def test_a_lookup_goes_before_a_chain_of_a_draft() -> None:
    draft = {"method": "eagle", "model": "x", "lookup": {"num_draft_tokens": 9}}
    found = DraftSpec.model_validate({**draft, "by_load": [[1, 9], [2, 0]]})
    assert (found.num_draft_tokens, found.longest) == (4, 9)
    assert "is no draft to go before" in fault_of(method="ngram", lookup={})
    assert "is no draft to go before" in fault_of(lookup={})
    assert "not trees" in fault_of(**draft, tree=[[0], [1]])
    assert "not trees" in fault_of(**draft, dynamic_tree={"depth": 2, "top_k": 2})
    assert "draft.lookup.shortest 9 is larger" in fault_of(
        method="eagle", model="x", lookup={"shortest": 9}
    )
    assert "within 0 … 9" in fault_of(**draft, by_load=[[1, 10]])
