"""On against off: identical, defective, or a near-tie, each told apart by the target's logits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import pytest
import torch
from conftest import WordTokenizer

from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine import Session
from neuron_spec.equivalence import Comparison, compare_greedy
from neuron_spec.equivalence.identity import NEAR_TIE_MARGINS, find_divergence

LIMITS = Limits(batch_size=2, max_prompt_tokens=4, max_total_tokens=32, num_draft_tokens=3)
VOCAB = 40
REPLY = tuple(range(10, 30))


class LogitsSpeculator:
    """A target that counts upwards, with logits that say so, and a wrong token where asked.

    Drafting (k > 0) changes what is committed at output position `position` to `wrong`.
    """

    def __init__(self, position: int, wrong: int, others: dict[int, float]) -> None:
        self._position, self._wrong, self._others = position, wrong, others
        self._rows: dict[int, list[int]] = {}
        self._prompt_lengths: dict[int, int] = {}
        self.limits = LIMITS
        self._accepted = cycle([2, 0, 3])

    def _logits(self, context: Sequence[int]) -> torch.Tensor:
        logits = torch.full((VOCAB,), -20.0)
        logits[context[-1] + 1] = 10.0
        for token, value in self._others.items():
            logits[token] = value
        return logits

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        assert slot not in self._rows
        self._rows[slot] = list(prompt_ids)
        self._prompt_lengths[slot] = len(prompt_ids)
        logits = self._logits(prompt_ids)
        token = prompt_ids[-1] + 1
        self._rows[slot].append(token)
        return PrefillResult(token, logits)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        results = []
        for slot, row in sorted(self._rows.items()):
            accepted = min(next(self._accepted), num_draft_tokens)
            new = []
            for _ in range(accepted + 1):
                is_wrong = len(row) - self._prompt_lengths[slot] == self._position
                right = row[-1] + 1
                row.append(self._wrong if is_wrong and num_draft_tokens else right)
                new.append(row[-1])
            results.append(StepResult(slot, tuple(new), num_draft_tokens, accepted))
        return results

    def release(self, slot: int) -> None:
        self._rows.pop(slot, None)


def compare(speculator: LogitsSpeculator, margin: float = 1e-3) -> Comparison:
    session = Session(speculator, WordTokenizer())
    (comparison,) = compare_greedy(
        session, ["9"], max_new_tokens=12, near_tie_margin=margin, ignore_eos=True
    )
    assert speculator._rows == {}  # the look at the logits left no slot taken
    return comparison


def test_identical() -> None:
    speculator = ScriptedSpeculator({(1,): REPLY, (3,): (*REPLY[:4], 2)}, accepted=[2, 0, 3])
    session = Session(speculator, WordTokenizer())
    comparisons = compare_greedy(session, ["1", "3"], max_new_tokens=9, near_tie_margin=0)
    assert [c.is_identical for c in comparisons] == [True, True]
    assert [len(c.plain.token_ids) for c in comparisons] == [9, 5]
    first = comparisons[0].as_dict()
    assert (first["identical"], first["divergence"]) == (True, None)
    assert first["num_output_tokens"] == 9
    assert first["acceptance"]["num_steps"] > 0
    assert comparisons[0].plain.acceptance.num_drafted == 0


@pytest.mark.parametrize("position", [1, 2, 5, 11])
def test_a_defect_is_found_where_it_begins(position: int) -> None:
    divergence = compare(LogitsSpeculator(position, 3, {})).divergence
    assert divergence is not None
    assert (divergence.position, divergence.kind) == (position, "defect")
    assert (divergence.plain_token, divergence.speculative_token) == (10 + position, 3)
    assert divergence.margin == 30.0
    assert divergence.top2_margin == 30.0


@pytest.mark.parametrize(
    ("margin", "kind"), [(0.5, "near-tie"), (0.25, "near-tie"), (0.2, "defect"), (0.0, "defect")]
)
def test_a_token_within_the_margin_is_a_near_tie(margin: float, kind: str) -> None:
    comparison = compare(LogitsSpeculator(4, 3, {3: 9.75}), margin)
    divergence = comparison.divergence
    assert divergence is not None
    assert not comparison.is_identical
    assert (divergence.position, divergence.kind) == (4, kind)
    assert (divergence.margin, divergence.top2_margin) == (0.25, 0.25)
    assert comparison.as_dict()["divergence"]["kind"] == kind


def test_a_near_tie_the_other_way_round() -> None:
    """The speculative token is the better one by a rounding error."""
    divergence = compare(LogitsSpeculator(4, 3, {3: 10.25}), 0.5).divergence
    assert divergence is not None
    assert (divergence.margin, divergence.kind) == (-0.25, "near-tie")


def test_two_poor_tokens_that_are_close_to_each_other_are_no_tie() -> None:
    divergence = compare(LogitsSpeculator(4, 3, {3: 10.0, 7: 30.0}), 0.5).divergence
    assert divergence is not None
    assert (divergence.margin, divergence.top2_margin) == (0.0, 20.0)
    assert divergence.kind == "defect"


def test_a_far_better_token_is_a_defect_too() -> None:
    divergence = compare(LogitsSpeculator(4, 3, {3: 15.0}), 0.5).divergence
    assert divergence is not None
    assert (divergence.margin, divergence.kind) == (-5.0, "defect")


class Altering(ScriptedSpeculator):
    """Answers otherwise when it drafts: `change` is applied to the tokens of a step."""

    def __init__(self, changes: dict[int, int]) -> None:
        super().__init__({(1,): REPLY}, accepted=[1], limits=LIMITS)
        self._changes = changes

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        results = super().step(num_draft_tokens)
        if num_draft_tokens == 0:
            return results
        return [
            StepResult(
                r.slot,
                tuple(self._changes.get(t, t) for t in r.tokens),
                r.num_drafted,
                r.num_accepted,
            )
            for r in results
        ]


def test_without_logits_every_divergence_is_a_defect() -> None:
    session = Session(Altering({14: 33}), WordTokenizer())
    (comparison,) = compare_greedy(session, ["1"], max_new_tokens=9, near_tie_margin=1e9)
    divergence = comparison.divergence
    assert divergence is not None
    assert (divergence.position, divergence.kind, divergence.margin) == (4, "defect", None)
    assert (divergence.plain_token, divergence.speculative_token) == (14, 33)


def test_an_output_that_ends_early_is_a_defect() -> None:
    speculator = ScriptedSpeculator({(1,): REPLY}, accepted=[1], limits=LIMITS)
    session = Session(speculator, WordTokenizer())
    plain = session.generate("1", max_new_tokens=6, speculate=False)
    shorter = session.generate("1", max_new_tokens=4)
    for pair, tokens in (((plain, shorter), (14, None)), ((shorter, plain), (None, 14))):
        divergence = find_divergence(session, "1", pair, 1e9)
        assert divergence is not None
        assert (divergence.position, divergence.kind) == (4, "defect")
        assert (divergence.plain_token, divergence.speculative_token) == tokens
        assert (divergence.margin, divergence.top2_margin) == (None, None)


def test_an_early_end_token_is_told_as_the_token_it_is() -> None:
    session = Session(Altering({13: 2}), WordTokenizer())
    (comparison,) = compare_greedy(session, ["1"], max_new_tokens=9, near_tie_margin=1)
    divergence = comparison.divergence
    assert divergence is not None
    assert (divergence.position, divergence.speculative_token) == (3, 2)
    assert divergence.kind == "defect"


def test_margins_grow_with_coarser_types() -> None:
    margins = NEAR_TIE_MARGINS
    assert 0 < margins["float32"] < margins["float16"] < margins["bfloat16"]
