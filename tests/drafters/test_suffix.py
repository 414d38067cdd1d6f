"""Suffix decoding: the request's own text and earlier answers, slot by slot."""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_spec.drafters import NO_PROPOSAL, SuffixDrafter

NONE = torch.zeros(0, 8)


def drafter(
    *, depth: int = 8, min_probability: float = 0.1, max_answers: int = 10
) -> SuffixDrafter:
    return SuffixDrafter(depth=depth, min_probability=min_probability, max_answers=max_answers)


def ids(*tokens: int) -> Tensor:
    return torch.tensor(tokens)


def propose(suffix: SuffixDrafter, k: int = 4) -> list[int]:
    return list(suffix.propose(1, k).tokens[0].tolist())


def serve(suffix: SuffixDrafter, prompt: Tensor, answer: Tensor, slot: int = 0) -> None:
    """A whole request, its answer committed in pieces."""
    suffix.begin(slot, torch.cat([prompt, answer[:1]]), NONE)
    suffix.observe(slot, answer[1:3], NONE)
    suffix.observe(slot, answer[3:], NONE)
    suffix.release(slot)


def test_a_prompt_is_continued() -> None:
    suffix = drafter()
    suffix.begin(0, ids(1, 2, 3, 4, 5, 9, 1, 2), NONE)
    assert propose(suffix) == [3, 4]
    suffix.observe(0, ids(3), NONE)
    assert propose(suffix) == [4, 5, 9]


def test_earlier_answers_are_continued_and_earlier_prompts_are_not() -> None:
    suffix = drafter()
    serve(suffix, ids(30, 31, 32), ids(1, 2, 3, 4, 5))
    suffix.begin(0, ids(40, 31), NONE)
    assert propose(suffix) == []
    suffix.observe(0, ids(1, 2), NONE)
    assert propose(suffix) == [3, 4]


def test_the_better_of_own_text_and_answers_is_proposed_and_of_equals_the_own() -> None:
    suffix = drafter()
    serve(suffix, ids(30), ids(1, 2, 3, 4))
    suffix.begin(0, ids(2, 7, 8, 9, 2), NONE)
    assert propose(suffix) == [7]
    suffix.release(0)
    suffix.begin(0, ids(2, 7, 8, 9, 1, 2), NONE)
    assert propose(suffix) == [3, 4], "two tokens are matched there, one in the own text"


def test_the_oldest_answer_is_dropped() -> None:
    suffix = drafter(max_answers=2)
    for first in (1, 11, 21):
        serve(suffix, ids(50), ids(first, first + 1, first + 2, first + 3))
    suffix.begin(0, ids(51, 1), NONE)
    suffix.begin(1, ids(52, 11), NONE)
    assert suffix.propose(2, 4).tokens.tolist() == [[NO_PROPOSAL], [12]]


def test_a_running_request_is_no_answer_yet() -> None:
    suffix = drafter()
    suffix.begin(0, ids(50, 1, 2, 3, 4), NONE)
    suffix.begin(1, ids(51, 1), NONE)
    assert suffix.propose(2, 4).tokens.shape == (2, 0)


def test_rows_keep_apart_and_a_slot_starts_anew() -> None:
    suffix = drafter(max_answers=0)
    suffix.begin(0, ids(1, 2, 3, 1), NONE)
    suffix.begin(2, ids(4, 5, 6, 4, 5), NONE)
    assert suffix.propose(3, 4).tokens.tolist() == [[2, -1], [-1, -1], [6, 4]]
    suffix.release(2)
    suffix.begin(2, ids(7, 4), NONE)
    assert suffix.propose(3, 4).tokens.tolist() == [[2], [-1], [-1]]


def test_steps_without_drafts_are_observed_too() -> None:
    suffix = drafter()
    suffix.begin(0, ids(9, 1), NONE)
    for token in (2, 3, 9, 1):
        suffix.observe(0, ids(token), NONE)
    assert propose(suffix) == [2, 3]


def test_a_slot_that_was_never_begun_is_released() -> None:
    drafter().release(3)
