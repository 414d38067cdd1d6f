"""Every rule says what it guarantees, level by level, with a source."""

from __future__ import annotations

from typing import get_args

import pytest

from neuron_spec.rules import CHAIN_RULES
from neuron_spec.spec import claims_of, guarantees, schema


@pytest.mark.parametrize("rule", schema.RULES)
def test_every_rule_claims_something_about_all_three_levels(rule: str) -> None:
    own = {"lenience": 0.5} if rule == "lenient" else {}
    claims = claims_of(schema.VerificationSpec.model_validate({"rule": rule, **own}))
    assert tuple(claim.level for claim in claims) == get_args(guarantees.Level)
    for claim in claims:
        assert claim.status in get_args(guarantees.Status)
        assert claim.source


def test_claims_exist_for_the_rules_that_exist_and_no_other() -> None:
    assert set(guarantees.RULES_WITH_CLAIMS) == set(CHAIN_RULES)
    assert set(schema.RULES) <= set(guarantees.RULES_WITH_CLAIMS)


def test_greedy_states_bitwise_identity_from_a_primary_source() -> None:
    first = claims_of(schema.VerificationSpec(rule="greedy"))[0]
    assert (first.level, first.status) == ("bitwise identity", "stated")
    assert "arXiv:1811.03115" in first.source


def test_numerics_are_a_condition() -> None:
    assert "near-tie" in guarantees.NUMERICS


@pytest.mark.parametrize(
    ("rule", "lenience", "statuses"),
    [
        ("greedy", None, ("stated", "stated", "stated")),
        ("rejection", None, ("not stated", "stated", "stated")),
        ("lenient", 1.0, ("not stated", "stated", "stated")),
        ("lenient", 0.999, ("not stated", "not stated", "not stated")),
        ("lenient", 0.1, ("not stated", "not stated", "not stated")),
        ("typical", None, ("not stated", "not stated", "measured, not stated")),
        ("sample-match", None, ("stated", "stated", "stated")),
    ],
)
def test_what_each_rule_claims(
    rule: str, lenience: float | None, statuses: tuple[str, ...]
) -> None:
    claims = guarantees.claims_for(rule, lenience=lenience)
    assert tuple(claim.level for claim in claims) == guarantees.LEVELS
    assert tuple(claim.status for claim in claims) == statuses
    for claim in claims:
        assert "arXiv:" in claim.source or claim.source == "follows from the level above"


def test_a_stated_level_states_the_weaker_ones() -> None:
    for rule in guarantees.RULES_WITH_CLAIMS:
        lenience = 0.5 if rule == "lenient" else None
        stated = [
            claim.status == "stated" for claim in guarantees.claims_for(rule, lenience=lenience)
        ]
        assert stated == sorted(stated)


def test_the_spec_hands_its_lenience_on() -> None:
    for lenience in (0.5, 1.0):
        verification = schema.VerificationSpec(rule="lenient", lenience=lenience)
        assert claims_of(verification) == guarantees.claims_for("lenient", lenience=lenience)


def test_lenience_one_is_rejection() -> None:
    assert guarantees.claims_for("lenient", lenience=1) == guarantees.claims_for("rejection")


def test_the_identity_of_sample_match_has_its_condition() -> None:
    bitwise = guarantees.claims_for("sample-match")[0]
    assert "same random number" in bitwise.source
    assert "arXiv:2408.07978" in bitwise.source


@pytest.mark.parametrize(
    ("rule", "lenience"),
    [
        ("lenient", None),
        ("lenient", 0.0),
        ("lenient", 1.5),
        ("lenient", float("nan")),
        ("rejection", 0.5),
        ("typicl", None),
    ],
)
def test_no_claim_without_the_parameters_that_it_depends_on(
    rule: str, lenience: float | None
) -> None:
    with pytest.raises(ValueError, match=r"lenience|no claims"):
        guarantees.claims_for(rule, lenience=lenience)
