"""On against off: identical, defective, or a near-tie, each told apart by the target's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from conftest import WordTokenizer

from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine import Session
from neuron_spec.equivalence import Comparison, compare_greedy, compare_systems
from neuron_spec.equivalence.identity import NEAR_TIE_MARGINS
from neuron_spec.equivalence.systems import Alternative, Ask, Reply, SessionSystem

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
    assert [len(c.reference.token_ids) for c in comparisons] == [9, 5]
    first = comparisons[0].as_dict()
    assert (first["identical"], first["divergence"]) == (True, None)
    assert first["num_output_tokens"] == 9
    assert first["acceptance"]["num_steps"] > 0
    assert comparisons[0].reference.acceptance.num_drafted == 0


@pytest.mark.parametrize("position", [1, 2, 5, 11])
def test_a_defect_is_found_where_it_begins(position: int) -> None:
    divergence = compare(LogitsSpeculator(position, 3, {})).divergence
    assert divergence is not None
    assert (divergence.position, divergence.kind) == (position, "defect")
    assert (divergence.reference_token, divergence.candidate_token) == (10 + position, 3)
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
    assert (divergence.reference_token, divergence.candidate_token) == (14, 33)


class Fixed:
    """A system with one answer."""

    name, max_prompt_tokens = "fixed", None

    def __init__(self, *tokens: int) -> None:
        self._reply = Reply("", tokens, num_tokens=len(tokens))

    def reply(self, asks: Sequence[Ask]) -> list[Reply]:
        return [self._reply for _ in asks]

    def alternatives(self, prompt: object, reply: Reply, character: int) -> None:
        return None


def test_an_output_that_ends_early_is_a_defect() -> None:
    for pair, tokens in (
        (((10, 11, 14), (10, 11)), (14, None)),
        (((10, 11), (10, 11, 14)), (None, 14)),
    ):
        (comparison,) = compare_systems(
            Fixed(*pair[0]), Fixed(*pair[1]), ["1"], max_new_tokens=6, near_tie_margin=1e9
        )
        (divergence,) = comparison.divergences
        assert (divergence.position, divergence.kind) == (2, "defect")
        assert (divergence.reference_token, divergence.candidate_token) == tokens
        assert (divergence.margin, divergence.top2_margin) == (None, None)


def test_an_early_end_token_is_told_as_the_token_it_is() -> None:
    session = Session(Altering({13: 2}), WordTokenizer())
    (comparison,) = compare_greedy(session, ["1"], max_new_tokens=9, near_tie_margin=1)
    divergence = comparison.divergence
    assert divergence is not None
    assert (divergence.position, divergence.candidate_token) == (3, 2)
    assert divergence.kind == "defect"


def test_margins_grow_with_coarser_types() -> None:
    margins = NEAR_TIE_MARGINS
    assert 0 < margins["float32"] < margins["float16"] < margins["bfloat16"]


class Counting(LogitsSpeculator):
    """Counts upwards; when drafting, writes another token in place of some."""

    def __init__(self, wrong: dict[int, int], others: dict[int, float]) -> None:
        super().__init__(-1, 0, others)
        self._wrong_for = wrong

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        results = []
        for slot, row in sorted(self._rows.items()):
            accepted = min(next(self._accepted), num_draft_tokens)
            new = []
            for _ in range(accepted + 1):
                right = row[-1] + 1
                row.append(self._wrong_for.get(right, right) if num_draft_tokens else right)
                new.append(row[-1])
            results.append(StepResult(slot, tuple(new), num_draft_tokens, accepted))
        return results


LONG = replace(LIMITS, max_prompt_tokens=32)


def counted(wrong: dict[int, int], limits: Limits = LONG) -> Comparison:
    # Logits of the right tokens are 10; 5 is a near-tie everywhere, 3 is far away.
    speculator = Counting(wrong, {5: 9.9})
    speculator.limits = limits
    session = Session(speculator, WordTokenizer())
    (comparison,) = compare_greedy(
        session, ["9"], max_new_tokens=14, near_tie_margin=0.5, ignore_eos=True
    )
    assert speculator._rows == {}
    return comparison


def test_a_near_tie_does_not_hide_a_later_defect() -> None:
    comparison = counted({12: 5, 17: 3, 18: 3})
    found = [
        (d.position, d.kind, d.reference_token, d.candidate_token) for d in comparison.divergences
    ]
    # The token right after a given prefix is the prefill's, which drafts nothing: 18 is right.
    assert found == [(2, "near-tie", 12, 5), (7, "defect", 17, 3)]
    assert comparison.num_defects == 1
    assert comparison.num_compared == 14
    assert comparison.divergence == comparison.divergences[0]
    data = comparison.as_dict()
    assert data["num_compared"] == 14
    assert [d["kind"] for d in data["divergences"]] == ["near-tie", "defect"]


def test_what_cannot_be_given_again_is_not_called_compared() -> None:
    comparison = counted({12: 5, 17: 3}, replace(LIMITS, max_prompt_tokens=3))
    assert [d.position for d in comparison.divergences] == [2]
    assert comparison.num_compared == 3


def test_the_last_position_needs_no_second_run() -> None:
    comparison = counted({23: 3})
    assert [(d.position, d.kind) for d in comparison.divergences] == [(13, "defect")]
    assert comparison.num_compared == 14


def test_divergences_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron_spec.equivalence.identity.MAX_DIVERGENCES", 2)
    comparison = counted({11: 3, 13: 3, 15: 3, 17: 3})
    assert [d.position for d in comparison.divergences] == [1, 3]
    assert comparison.num_compared == 4


# Text only: endpoints


class Telling:
    """A system of texts: prompt -> output, and the likeliest tokens at each of its tokens."""

    name, max_prompt_tokens = "telling", None

    def __init__(self, outputs: dict[str, str], tops: Sequence[dict[str, float]] = ()) -> None:
        self._outputs, self._tops = outputs, tops

    def reply(self, asks: Sequence[Ask]) -> list[Reply]:
        texts = [self._outputs[str(ask.prompt)] for ask in asks]
        return [Reply(text, num_tokens=len(text.split())) for text in texts]

    def alternatives(
        self, prompt: object, reply: Reply, character: int
    ) -> tuple[int, list[Alternative]] | None:
        if not self._tops:
            return None
        offset = 0
        for index, word in enumerate(reply.text.split(" ")):
            text = word if index == 0 else f" {word}"
            if character < offset + len(text):
                top = self._tops[index]
                return offset, [Alternative(t, d) for t, d in top.items()]
            offset += len(text)
        return offset, [Alternative("", 0.0)]


TOPS = [
    {"a": 0.0, "x": 3.0},
    {" b": 0.0, " bee": 0.1, " y": 2.0},
    {" c": 0.0},
    {" d": 0.0, "": 0.2},
]


def compare_texts(outputs: dict[str, str], tops: Sequence[dict[str, float]] = TOPS) -> Comparison:
    (comparison,) = compare_systems(
        Telling({"p": "a b c d"}, tops),
        Telling(outputs),
        ["p"],
        max_new_tokens=4,
        near_tie_margin=0.5,
    )
    return comparison


def test_equal_texts() -> None:
    assert compare_texts({"p": "a b c d"}).is_identical


def test_a_text_that_goes_on_with_a_likely_token_is_a_near_tie_and_the_rest_is_compared() -> None:
    comparison = compare_texts({"p": "a bee sees", "pa b": " c e"})
    first, second = comparison.divergences
    assert (first.kind, first.margin, first.top2_margin) == ("near-tie", 0.1, 0.1)
    assert (first.reference_token, first.position) == (" b", 3)
    assert (second.kind, second.position, second.reference_token) == ("defect", 6, " d")


def test_a_text_that_goes_on_with_an_unlikely_token_is_a_defect() -> None:
    comparison = compare_texts({"p": "a y", "pa b": " c d"})
    assert [(d.kind, d.margin) for d in comparison.divergences] == [("defect", 2.0)]
    unknown = compare_texts({"p": "a z", "pa b": " c d"}).divergences
    assert [(d.kind, d.margin) for d in unknown] == [("defect", None)]


def test_a_shorter_token_counts_where_the_texts_part_and_not_before() -> None:
    parting = [*TOPS[:2], {" c": 0.0, " ": 0.1}, TOPS[3]]
    (divergence,) = compare_texts({"p": "a b q", "pa b c": " d"}, parting).divergences
    assert (divergence.kind, divergence.position) == ("near-tie", 4)
    before = [TOPS[0], {" b": 0.0, " ": 0.1}, *TOPS[2:]]
    (divergence,) = compare_texts({"p": "a b q", "pa b c": " d"}, before).divergences
    assert (divergence.kind, divergence.position) == ("defect", 4)


def test_ending_can_be_a_near_tie_too() -> None:
    (divergence,) = compare_texts({"p": "a b c"}).divergences
    assert (divergence.kind, divergence.position, divergence.margin) == ("near-tie", 5, 0.2)


def test_without_alternatives_every_difference_of_texts_is_a_defect() -> None:
    (divergence,) = compare_texts({"p": "a b c e"}, ()).divergences
    assert (divergence.kind, divergence.position, divergence.reference_token) == ("defect", 6, "d")


def test_a_session_tells_alternatives_of_its_reply() -> None:
    speculator = LogitsSpeculator(-1, 0, {5: 9.5})
    system = SessionSystem(Session(speculator, WordTokenizer()), speculate=False)
    (reply,) = system.reply([Ask("9", 4, {"ignore_eos": True})])
    assert reply.text == "10 11 12 13 "
    told = system.alternatives("9", reply, 4)
    assert told is not None
    offset, alternatives = told
    assert offset == 3
    assert alternatives[:2] == [Alternative("11 ", 0.0), Alternative("5 ", 0.5)]
    assert speculator._rows == {}
