"""The last word: which level, whether it held, what the rule claims, and what limits it."""

from __future__ import annotations

import sys

import pytest

from neuron_spec.equivalence.identity import Comparison, Divergence
from neuron_spec.equivalence.power import scipy
from neuron_spec.equivalence.systems import Reply
from neuron_spec.equivalence.verdict import strongest_level, verdict_on_identity
from neuron_spec.errors import DependencyError
from neuron_spec.spec.schema import VerificationSpec


@pytest.mark.parametrize(
    ("rule", "level"),
    [("greedy", 1), ("rejection", 2), ("sample-match", 1), ("typical", 3), ("lenient", 3)],
)
def test_the_level_that_a_rule_is_tested_at(rule: str, level: int) -> None:
    lenience = 0.5 if rule == "lenient" else None
    spec = VerificationSpec.model_validate({"rule": rule, "lenience": lenience})
    assert strongest_level(spec) == level
    # Without common random numbers sample match shares the distribution only.
    assert strongest_level(spec, has_seeds=False) == (2 if rule == "sample-match" else level)


def test_a_lenience_of_one_is_rejection() -> None:
    spec = VerificationSpec.model_validate({"rule": "lenient", "lenience": 1.0})
    assert strongest_level(spec) == 2


def comparison(*kinds: str, num_compared: int = 4) -> Comparison:
    reply = Reply("", (1, 2, 3, 4), num_tokens=4)
    divergences = tuple(
        Divergence(n, 1, 2, 0.0, 0.0, kind)  # type: ignore[arg-type]
        for n, kind in enumerate(kinds)
    )
    return Comparison(reply, reply, divergences, num_compared)


def test_near_ties_hold_and_defects_do_not() -> None:
    greedy = VerificationSpec()
    held = verdict_on_identity([comparison(), comparison("near-tie")], greedy)
    assert held.held
    assert held.summary == "1 of 2 identical, 1 near-tie(s), 0 defect(s)"
    assert "stated" in (held.claim or "")
    assert "8 positions of 2 prompt(s)" in held.notes[0]
    broken = verdict_on_identity([comparison("near-tie", "defect")], greedy)
    assert not broken.held
    assert broken.notes == ("one prompt proves nothing about others",)


def test_what_was_not_compared_is_told() -> None:
    verdict = verdict_on_identity([comparison("near-tie", num_compared=2)], None)
    assert any("was not all compared" in note for note in verdict.notes)
    assert verdict.claim is None


def test_a_level_that_the_rule_does_not_state_is_told() -> None:
    rejection = VerificationSpec.model_validate({"rule": "rejection"})
    verdict = verdict_on_identity([comparison(), comparison()], rejection)
    assert any("does not state this level" in note for note in verdict.notes)


def test_without_scipy_the_mend_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(DependencyError, match="evaluate"):
        scipy("stats")
