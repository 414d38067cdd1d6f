"""Seeded samples at level 1: the same tokens with any draft, near-ties by the number drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from markov import MarkovSpeculator, chain_logits, near, session_of
from torch import Tensor

from neuron_spec.equivalence import Comparison, compare_systems
from neuron_spec.equivalence.systems import SessionSystem
from neuron_spec.equivalence.ties import Seeded, greedy_divergence, sampled_divergence
from neuron_spec.rules.uniforms import SAMPLE_STREAM, uniform_at

PROMPTS = ["1", "3", "4", "5"]
MARGIN = 1e-3


def compared(
    off: MarkovSpeculator, on: MarkovSpeculator, seed: int = 0, margin: float = MARGIN
) -> list[Comparison]:
    systems = (
        SessionSystem(session_of(off), speculate=False),
        SessionSystem(session_of(on), speculate=True),
    )
    return compare_systems(
        *systems,
        PROMPTS,
        max_new_tokens=16,
        near_tie_margin=margin,
        ignore_eos=True,
        seeded=Seeded(0.8, seed),
    )


def markov(rule: str, kind: Any = MarkovSpeculator, target: Tensor | None = None) -> Any:
    logits = chain_logits(1) if target is None else target
    return kind(logits, near(chain_logits(1), noise=0.4), rule)


def test_sample_match_with_seeds_is_identical() -> None:
    for seed in range(0, 100, 4):  # 25 times 4 prompts
        found = compared(markov("sample-match"), markov("sample-match"), seed)
        assert all(comparison.is_identical for comparison in found)
    assert len({c.reference.token_ids for c in found}) == len(PROMPTS)  # each has its own seed


def test_other_seeds_give_other_tokens() -> None:
    one = compared(markov("sample-match"), markov("sample-match"), 0)
    other = compared(markov("sample-match"), markov("sample-match"), 50)
    assert [c.reference.token_ids for c in one] != [c.reference.token_ids for c in other]


def test_rejection_keeps_the_distribution_and_not_the_tokens() -> None:
    found = compared(markov("rejection"), markov("rejection"))
    divergences = [d for comparison in found for d in comparison.divergences]
    assert divergences
    assert all(d.uniform is not None and d.border_tolerance is not None for d in divergences)


class AnotherStream(MarkovSpeculator):
    """The verification draws from numbers that are not those of its positions."""

    def judged(self, tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Any):  # type: ignore[no-untyped-def]
        moved = type(uniforms)(uniforms.accept, uniforms.sample.roll(1, dims=1))
        return super().judged(tokens, draft_probs, target_probs, moved)


class BonusFromTheWrongRow(MarkovSpeculator):
    def judged(self, tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Any):  # type: ignore[no-untyped-def]
        wrong = torch.cat([target_probs[:, :-1], target_probs[:, -2:-1]], dim=1)
        k = tokens.shape[1]
        return super().judged(tokens, draft_probs, wrong if k else target_probs, uniforms)


@pytest.mark.parametrize("kind", [AnotherStream, BonusFromTheWrongRow])
def test_defects_of_sampled_output_are_found_at_their_position(kind: Any) -> None:
    divergences = []
    for seed in range(0, 40, 4):
        for comparison in compared(markov("sample-match"), markov("sample-match", kind), seed):
            divergences += comparison.divergences
    defects = [d for d in divergences if d.kind == "defect"]
    assert defects
    assert all(d.position >= 1 for d in divergences)  # the first token is the prefill's
    for defect in defects:
        assert defect.border_distance is not None
        assert defect.border_tolerance is not None
        assert defect.border_distance > defect.border_tolerance


@pytest.mark.parametrize(("share", "has_defects"), [(0.99, False), (8.0, True)])
def test_rounding_is_a_near_tie(share: float, has_defects: bool) -> None:
    """Logits off by less than half the margin: only numbers next to a border fall otherwise. Off by
    several times as much they do not stay there."""
    margin, divergences = 0.05, []
    noise = torch.rand(8, 8, generator=torch.Generator().manual_seed(3)) - 0.5
    for seed in range(0, 48, 4):
        on = markov("sample-match", target=chain_logits(1) + noise * share * margin)
        for comparison in compared(markov("sample-match"), on, seed, margin):
            divergences += comparison.divergences
    assert divergences
    assert any(divergence.kind == "defect" for divergence in divergences) == has_defects


LOGITS = torch.tensor([0.0, 1.0, 2.0, 0.5])


@given(st.integers(0, 2**40), st.integers(0, 500), st.floats(0.2, 2))
def test_the_distance_is_zero_for_the_token_that_the_number_falls_on(
    seed: int, place: int, temperature: float
) -> None:
    uniform = float(uniform_at(torch.tensor(seed), torch.tensor(place), SAMPLE_STREAM))
    ends = (LOGITS.double() / temperature).softmax(dim=-1).cumsum(dim=-1)
    own = int((ends > uniform).long().argmax())
    for other in range(4):
        drawn = (Seeded(temperature, seed), place)
        found = sampled_divergence(7, (own, other), LOGITS, drawn, near_tie_margin=MARGIN)
        low = 0.0 if other == 0 else float(ends[other - 1])
        outside = max(low - uniform, uniform - float(ends[other]), 0.0)
        assert found.border_distance == pytest.approx(outside, abs=1e-6)
        assert found.uniform == uniform
        assert found.margin == pytest.approx(float(LOGITS[own] - LOGITS[other]))


def test_greedy_needs_both_tokens_near_the_best() -> None:
    logits = torch.tensor([5.0, 4.9995, 1.0, 0.9999])
    tie = greedy_divergence(3, (0, 1), logits, near_tie_margin=MARGIN)
    assert (tie.kind, tie.position, tie.uniform) == ("near-tie", 3, None)
    assert greedy_divergence(3, (2, 3), logits, near_tie_margin=MARGIN).kind == "defect"
