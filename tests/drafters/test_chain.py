"""A language model as draft: it reads every token, at the token's own position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neuron_spec.drafters import ChainDrafter


def drafter() -> tuple[ChainDrafter, list[tuple[list[list[int]], list[int], int]]]:
    calls: list[tuple[list[list[int]], list[int], int]] = []

    def forward(tokens: Tensor, features: Tensor, starts: Sequence[int], slot: int) -> Tensor:
        calls.append((tokens.tolist(), list(starts), slot))
        return tokens[..., None].float()

    def logits(hidden: Tensor) -> Tensor:  # proposes the id after the last one
        return -(torch.arange(50) - hidden - 1).abs()

    return ChainDrafter(forward, logits), calls


def ids(*tokens: int) -> Tensor:
    return torch.tensor(tokens)


def test_the_prompt_is_run_at_once_and_the_first_token_waits() -> None:
    chain, calls = drafter()
    chain.begin(1, ids(4, 5, 6), torch.zeros(2, 8))
    assert calls == [([[4, 5]], [0], 1)]


def test_each_proposal_is_the_input_of_the_next() -> None:
    chain, calls = drafter()
    chain.begin(0, ids(4, 5), torch.zeros(1, 8))
    calls.clear()
    assert chain.propose(1, 3).tokens.tolist() == [[6, 7, 8]]
    assert calls == [([[5]], [1], 0), ([[6]], [2], 0), ([[7]], [3], 0)]


def test_committed_tokens_replace_the_drafts_guesses() -> None:
    chain, calls = drafter()
    chain.begin(0, ids(4, 5), torch.zeros(1, 8))
    chain.propose(1, 3)
    chain.observe(0, ids(6, 20), torch.zeros(2, 8))
    calls.clear()
    assert chain.propose(1, 1).tokens.tolist() == [[21]]
    assert calls == [([[6, 20]], [2], 0)]
