"""Defects that speculation is known for, planted one by one: each is found at its level and place,
and the right implementation passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from markov import MarkovSpeculator, chain_logits, near, session_of
from torch import Tensor

from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.checkpoints.prepare import prepare
from neuron_spec.engine import Session
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.equivalence import Comparison, compare_greedy
from neuron_spec.equivalence.distribution import FitResult, FitSettings, compare_distributions
from neuron_spec.equivalence.identity import NEAR_TIE_MARGINS
from neuron_spec.equivalence.systems import SessionSystem
from neuron_spec.rules import Uniforms, Verdict
from neuron_spec.sampling import sample
from neuron_spec.spec import BuildSpec

PROMPTS = ["1", "3", "4", "5"]
SETTINGS = FitSettings(num_samples=600, max_new_tokens=4, options={"temperature": 0.6})


class CacheNotRolledBack(MarkovSpeculator):
    """The next step sees the last drafted token, rejected or not."""

    def kept(self, drafts: Sequence[int], new: Sequence[int]) -> int:
        return drafts[-1] if drafts and len(new) <= len(drafts) else new[-1]


class OnePositionOff(MarkovSpeculator):
    """Drafts are judged by the row after theirs."""

    def judged(
        self, tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Uniforms
    ) -> Verdict:
        shifted = torch.cat([target_probs[:, 1:], target_probs[:, -1:]], dim=1)
        return self.rule(tokens, draft_probs, shifted, uniforms)


class BonusFromTheWrongRow(MarkovSpeculator):
    """After a fully accepted draft the token comes from the row before the last."""

    def judged(
        self, tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Uniforms
    ) -> Verdict:
        verdict = self.rule(tokens, draft_probs, target_probs, uniforms)
        k = tokens.shape[1]
        if k == 0:
            return verdict
        wrong = sample(target_probs[:, k - 1], uniforms.sample[:, k])
        next_tokens = torch.where(verdict.num_accepted == k, wrong, verdict.next_tokens)
        return Verdict(verdict.num_accepted, next_tokens)


class DraftProbsOfAnotherTemperature(MarkovSpeculator):
    """q is not what was sampled from: the rule is told the draft's at temperature 2."""

    def told(self, drawn_from: Tensor) -> Tensor:
        warmer = drawn_from**0.3
        return warmer / warmer.sum(dim=-1, keepdim=True)


class TemperatureOnOneSide(MarkovSpeculator):
    """The verification forgets the temperature."""

    def scored(self, context: Tensor, temperatures: Tensor) -> Tensor:
        is_drafting = context.shape[1] > 1
        return super().scored(
            context, torch.ones_like(temperatures) if is_drafting else temperatures
        )


def greedy(kind: type[MarkovSpeculator], seed: int = 1) -> list[Comparison]:
    # Little noise in the draft, so that whole drafts are accepted too.
    target = chain_logits(seed)
    speculator = kind(target, near(target, noise=0.4), "greedy")
    return compare_greedy(
        session_of(speculator),
        PROMPTS,
        max_new_tokens=24,
        near_tie_margin=NEAR_TIE_MARGINS["float32"],
        ignore_eos=True,
    )


def sampled(
    kind: type[MarkovSpeculator], settings: FitSettings = SETTINGS, rule: str = "rejection"
) -> FitResult:
    # Much noise in the draft, so that much is rejected; little where whole drafts are the point.
    target, noise = chain_logits(1), 0.4 if kind is BonusFromTheWrongRow else 1.5
    session = session_of(kind(target, near(target, noise=noise), rule))
    systems = (SessionSystem(session, speculate=on) for on in (False, True))
    return compare_distributions(*systems, PROMPTS[:1], settings)


@pytest.mark.parametrize("kind", [CacheNotRolledBack, OnePositionOff, BonusFromTheWrongRow])
def test_level_1_finds_it(kind: type[MarkovSpeculator]) -> None:
    found = 0
    for seed in range(3):
        for comparison in greedy(kind, seed):
            found += comparison.num_defects
            assert comparison.num_defects == len(comparison.divergences)
            for divergence in comparison.divergences:
                assert divergence.position >= 1  # the first token is the prefill's
                assert divergence.margin is not None
                assert divergence.margin > 1e-3
    assert found > 0


def test_level_1_passes_the_right_implementation() -> None:
    for seed in range(25):  # of 4 prompts each
        assert all(comparison.is_identical for comparison in greedy(MarkovSpeculator, seed))


@pytest.mark.parametrize(
    ("kind", "first_position"),
    [
        (OnePositionOff, 1),
        (BonusFromTheWrongRow, None),
        (DraftProbsOfAnotherTemperature, 1),
        (TemperatureOnOneSide, 1),
    ],
)
def test_level_2_finds_it(kind: type[MarkovSpeculator], first_position: int | None) -> None:
    # The bonus token is the fifth: a whole draft comes after the prefill's token.
    settings = SETTINGS if first_position else FitSettings(600, 5, {"temperature": 0.6})
    result = sampled(kind, settings)
    assert result.failures
    positions = [test.position for test in result.failures if test.position is not None]
    assert min(positions) == (first_position or 4)
    worst = result.failures[0]
    assert worst.adjusted_p < result.significance
    assert worst.tv > worst.expected_tv
    if first_position == 1:
        assert any(test.position is None for test in result.failures)  # whole outputs too


def test_level_2_finds_a_defect_that_only_whole_outputs_show() -> None:
    """Position by position a chain that goes on from a wrong token looks much like a right one."""
    result = sampled(CacheNotRolledBack)
    assert result.failures
    assert result.failures[0].position is None


@pytest.mark.parametrize("rule", ["rejection", "sample-match"])
def test_level_2_passes_the_right_rules(rule: str) -> None:
    assert not sampled(MarkovSpeculator, rule=rule).failures


def test_level_2_finds_that_lenience_changes_the_distribution() -> None:
    class Lenient(MarkovSpeculator):
        def __init__(self, target: Tensor, draft: Tensor, rule: str) -> None:
            super().__init__(target, draft, "lenient", lenience=0.2)

    assert sampled(Lenient).failures


def test_level_2_passes_the_right_implementation_at_the_stated_error_rate() -> None:
    """10 runs here, 100 in the slow test: at 1 % two alarms in 10 are less likely than 1 %."""
    assert count_false_alarms(10) <= 1


@pytest.mark.slow
def test_level_2_passes_the_right_implementation_100_times() -> None:
    """More than 4 false alarms in 100 runs at 1 % have a probability below 0.4 %."""
    assert count_false_alarms(100) <= 4


def count_false_alarms(num_runs: int) -> int:
    alarms = 0
    for run in range(num_runs):
        settings = FitSettings(150, 3, {"temperature": 0.6}, seed=1000 + run)
        alarms += bool(sampled(MarkovSpeculator, settings).failures)
    return alarms


def test_an_end_ignored_in_a_block_is_found_at_its_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def push_all(self: Any, slot: int, tokens: Sequence[Any]) -> Iterator[Any]:
        running = self._slots[slot]
        for committed in tokens:
            yield running.take(committed)
        if running.output.reason is not None:
            yield self._leave(slot, running.output.reason)

    target = torch.full((8, 8), -5.0)
    for token, after in enumerate((1, 3, 0, 4, 5, 2, 0, 0)):
        target[token, after] = 5.0
    session = session_of(MarkovSpeculator(target, target, "greedy"))
    options: dict[str, Any] = {"max_new_tokens": 24, "near_tie_margin": 1e-3}
    assert compare_greedy(session, ["1"], **options)[0].is_identical
    monkeypatch.setattr(DecodeLoop, "_push", push_all)
    (comparison,) = compare_greedy(session, ["1"], **options)
    assert comparison.reference.token_ids == (3, 4, 5, 2)
    (divergence,) = comparison.divergences
    assert (divergence.position, divergence.reference_token, divergence.kind) == (4, None, "defect")


# The reference backend itself


@pytest.fixture
def session(spec: BuildSpec) -> Session:
    prepared = prepare(spec)
    speculator = open_speculator(spec, prepared.target, prepared.draft)
    return Session(speculator, ModelTokenizer(prepared.target))


def reference_backend(session: Session) -> list[Comparison]:
    return compare_greedy(
        session, ["ab", [5, 6, 7]], max_new_tokens=16, near_tie_margin=1e-3, ignore_eos=True
    )


def test_the_reference_backend_with_a_cache_that_is_not_rolled_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(comparison.is_identical for comparison in reference_backend(session))
    right = ReferenceSpeculator._commit

    def commit(self: Any, slot: int, drafts: Sequence[int], *rest: Any) -> Any:
        result = right(self, slot, drafts, *rest)
        self._rows[slot].position += len(drafts) + 1 - len(result.tokens)
        return result

    monkeypatch.setattr(ReferenceSpeculator, "_commit", commit)
    comparisons = reference_backend(session)
    assert all(comparison.num_defects for comparison in comparisons)
    # The first step's tokens are right: what it leaves behind is wrong.
    assert all(c.divergence and c.divergence.position >= 2 for c in comparisons)
