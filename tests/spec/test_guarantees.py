"""Every rule says what it guarantees, level by level, with a source."""

from __future__ import annotations

from typing import get_args

import pytest

from neuron_spec.spec import claims_of, guarantees, schema


@pytest.mark.parametrize("rule", schema.RULES)
def test_every_rule_claims_something_about_all_three_levels(rule: str) -> None:
    claims = claims_of(schema.VerificationSpec.model_validate({"rule": rule}))
    assert tuple(claim.level for claim in claims) == get_args(guarantees.Level)
    for claim in claims:
        assert claim.status in get_args(guarantees.Status)
        assert claim.source


def test_claims_exist_for_no_other_rule() -> None:
    assert set(guarantees._CLAIMS) == set(schema.RULES)


def test_greedy_states_bitwise_identity_from_a_primary_source() -> None:
    first = claims_of(schema.VerificationSpec(rule="greedy"))[0]
    assert (first.level, first.status) == ("bitwise identity", "stated")
    assert "arXiv:1811.03115" in first.source


def test_numerics_are_a_condition() -> None:
    assert "near-tie" in guarantees.NUMERICS
