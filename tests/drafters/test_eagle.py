"""The drafter's bookkeeping: which pairs it runs, at which positions, seen through a fake head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from neuron_spec.drafters import EagleDrafter

HIDDEN, VOCAB = 3, 50


@dataclass
class FakeHead:
    """Adds the token to the feature; proposes the id that the feature's first value rounds to."""

    calls: list[tuple[list[list[int]], list[int], int]] = field(default_factory=list)

    def forward(
        self, tokens: Tensor, features: Tensor, starts: Sequence[int], first_slot: int
    ) -> Tensor:
        self.calls.append((tokens.tolist(), list(starts), first_slot))
        return features + tokens[..., None]

    def logits(self, hidden: Tensor) -> Tensor:
        ids = torch.arange(VOCAB, dtype=hidden.dtype)
        return -(ids - hidden[..., :1]).abs()


def drafter() -> tuple[EagleDrafter, FakeHead]:
    head = FakeHead()
    return EagleDrafter(head.forward, head.logits), head


def features(count: int, value: float = 0.0) -> Tensor:
    return torch.full((count, HIDDEN), value)


def ids(*tokens: int) -> Tensor:
    return torch.tensor(tokens)


def test_a_prompt_is_run_but_for_its_last_pair() -> None:
    eagle, head = drafter()
    eagle.begin(0, ids(9, 4, 5, 6), features(3))
    assert head.calls == [([[4, 5]], [0], 0)]


def test_a_chain_continues_from_its_own_features_and_positions() -> None:
    eagle, head = drafter()
    eagle.begin(0, ids(9, 4, 5, 6), features(3, 1.0))
    head.calls.clear()
    # 1 + 6 = 7; then feature 7 + token 7 = 14; then 14 + 14 = 28.
    assert eagle.propose(1, 3).tokens.tolist() == [[7, 14, 28]]
    assert head.calls == [([[6]], [2], 0), ([[7]], [3], 0), ([[14]], [4], 0)]


def test_accepted_tokens_are_run_again_with_true_features() -> None:
    eagle, head = drafter()
    eagle.begin(0, ids(9, 6), features(1, 1.0))
    assert head.calls == []  # a one-token prompt leaves nothing to run
    eagle.propose(1, 2)
    eagle.observe(0, ids(7, 9), features(2, 2.0))
    head.calls.clear()
    assert eagle.propose(1, 1).tokens.tolist() == [[11]]  # last pair: feature 2 + token 9
    assert head.calls == [([[7, 9]], [1], 0)]


def test_rows_are_padded_at_the_end_and_keep_their_positions() -> None:
    eagle, head = drafter()
    eagle.begin(0, ids(9, 3), features(1))
    eagle.begin(2, ids(9, 8), features(1))
    eagle.propose(3, 2)
    eagle.observe(0, ids(1), features(1))
    eagle.observe(2, ids(2, 3), features(2))
    head.calls.clear()
    proposals = eagle.propose(3, 1).tokens
    assert head.calls == [([[1, 0], [0, 0], [2, 3]], [1, 0, 1], 0)]
    assert proposals[0].tolist() == [1]
    assert proposals[2].tolist() == [3]


def test_after_a_pause_the_missed_pairs_are_caught_up_row_by_row() -> None:
    eagle, head = drafter()
    eagle.begin(0, ids(9, 3), features(1))
    for token in (4, 5, 6, 7):
        eagle.observe(0, ids(token), features(1))
    eagle.propose(1, 1)
    assert head.calls == [([[3, 4, 5, 6]], [0], 0), ([[7]], [4], 0)]


def test_a_released_slot_is_forgotten() -> None:
    eagle, head = drafter()
    eagle.begin(0, ids(9, 3), features(1))
    eagle.begin(1, ids(9, 4), features(1))
    eagle.release(1)
    eagle.propose(1, 1)
    assert head.calls[-1] == ([[3]], [0], 0)
