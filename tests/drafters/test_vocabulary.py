"""Drafting across two vocabularies, seen through a fake draft: draft ids are 0 … 9, target ids are
100 + the same number for the shared ones, 2, 3, 4, 5 and 6."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neuron_spec.drafters import NO_PROPOSAL, IntersectionDrafter, Translation

SHARED = {draft: 100 + draft for draft in (2, 3, 4, 5, 6)}
NONE = torch.zeros(0, 8)


def reencode(ids: list[int]) -> list[int]:
    """As a tokenizer whose ids are two to a target id, and none for id 199."""
    return [part for token in ids if token != 199 for part in (8, token % 10)]


def translation(draft_vocab: int = 10, target_vocab: int = 200) -> Translation:
    return Translation.of_shared(
        SHARED, reencode, draft_vocab=draft_vocab, target_vocab=target_vocab
    )


def drafter(max_positions: int = 50) -> tuple[IntersectionDrafter, list[tuple[list[int], int]]]:
    """Its draft prefers the ids after the last one, in order, whether they are shared or not."""
    calls: list[tuple[list[int], int]] = []

    def forward(tokens: Tensor, features: Tensor, starts: Sequence[int], slot: int) -> Tensor:
        calls.extend((row, start) for row, start in zip(tokens.tolist(), starts, strict=True))
        return tokens[..., None].float()

    def logits(hidden: Tensor) -> Tensor:
        return -((torch.arange(10) - hidden - 1) % 10)

    found = IntersectionDrafter(forward, logits, translation(), max_positions=max_positions)
    return found, calls


def ids(*tokens: int) -> Tensor:
    return torch.tensor(tokens)


def features(count: int) -> Tensor:
    return torch.zeros(count, 8)


def test_shared_tokens_are_taken_over_and_runs_of_others_re_encoded() -> None:
    assert translation().of_commit([102, 150, 151, 103]) == [2, 8, 0, 8, 1, 3]
    assert translation().of_text([102, 103]) == [8, 2, 8, 3], "a prompt is encoded as a whole"


def test_text_that_leaves_nothing_is_one_token_all_the_same() -> None:
    assert translation().of_commit([199]) == [0]
    assert translation().of_text([199]) == [0]


def test_ids_without_a_row_in_either_model_are_not_shared() -> None:
    found = translation(draft_vocab=6, target_vocab=105)
    assert found.to_target.tolist() == [-1, -1, 102, 103, 104, -1]
    assert found.to_draft == {102: 2, 103: 3, 104: 4}
    assert found.of_commit([106, 108, 155]) == [5], "6 and 8 have no row, 5 is the last one"


def test_the_best_shared_tokens_are_proposed_as_target_ids() -> None:
    """After 6 the draft would say 7, which the target does not have; 2 is the next that it has."""
    found, calls = drafter()
    found.begin(0, ids(150, 104), features(1))
    assert found.propose(1, 4).tokens.tolist() == [[105, 106, 102, 103]]
    assert calls == [([8, 0], 0), ([4], 2), ([5], 3), ([6], 4), ([2], 5)]


def test_a_prompt_is_cut_as_the_drafts_own_tokenizer_cuts_it() -> None:
    found, calls = drafter()
    found.begin(0, ids(102, 103, 104), features(2))
    assert calls == [([8, 2, 8, 3], 0)]


def test_what_was_committed_is_read_at_the_drafts_own_positions() -> None:
    found, calls = drafter()
    found.begin(0, ids(150, 104), features(1))
    found.propose(1, 1)
    found.observe(0, ids(105, 151, 106), features(3))
    calls.clear()
    assert found.propose(1, 1).tokens.tolist() == [[102]]
    assert calls == [([5, 8, 1], 3), ([6], 6)]


def test_a_sequence_that_outgrows_the_cache_is_not_drafted_for() -> None:
    """Six draft tokens: with room for k + 1 = 3 more they need nine."""
    for positions, expected in ((9, [105, 106]), (8, [])):
        found, _ = drafter(positions)
        found.begin(0, ids(150, 151, 102), features(2))
        found.observe(0, ids(104), features(1))
        assert found.propose(1, 2).tokens.tolist() == [expected]
        found.observe(0, ids(105), features(1))
    assert found.propose(1, 1).tokens.tolist() == [[]], "nor later"


def test_other_rows_are_still_drafted_for_and_a_slot_starts_anew() -> None:
    found, _ = drafter(max_positions=8)
    found.begin(0, ids(150, 151, 152, 104), features(3))
    found.begin(1, ids(150, 104), features(1))
    assert found.propose(3, 2).tokens.tolist() == [[NO_PROPOSAL] * 2, [105, 106], [NO_PROPOSAL] * 2]
    found.release(0)
    found.begin(0, ids(150, 102), features(1))
    found.observe(1, ids(103), features(1))
    assert found.propose(2, 2).tokens.tolist() == [[103, 104], [104, 105]]


def test_a_prompt_beyond_the_cache_is_not_run_at_all() -> None:
    found, calls = drafter(max_positions=8)
    found.begin(0, ids(*[150] * 4, 104), features(4))
    found.observe(0, ids(105), features(1))
    assert calls == []
    assert found.propose(1, 2).tokens.shape == (1, 0)
    found.release(0)
