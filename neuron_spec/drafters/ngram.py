"""Prompt lookup: propose what followed the last tokens when they occurred before.

Needs no weights. Source: apoorvumang/prompt-lookup-decoding; transformers'
`prompt_lookup_num_tokens` and vLLM's n-gram speculator do the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from neuron_spec.drafters.base import NO_PROPOSAL, Choose, Proposal, choose_best


class NgramIndex:
    """A history with the latest place of every n-gram of `min_size` … `max_size` tokens.

    An n-gram enters the index once a token follows it, so that a lookup of the last tokens finds
    earlier occurrences only, and every token costs the same however long the history is.
    """

    def __init__(self, min_size: int, max_size: int) -> None:
        self._sizes = range(max_size, min_size - 1, -1)  # the longest first
        self._history: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            for size in self._sizes:
                if size <= len(self._history):
                    self._ends[tuple(self._history[-size:])] = len(self._history)
            self._history.append(token)

    def continuation(self, num_tokens: int) -> list[int]:
        """What followed the longest suffix that occurred before, at its latest occurrence."""
        for size in self._sizes:
            end = self._ends.get(tuple(self._history[-size:]))
            if end is not None:
                return self._history[end : end + num_tokens]
        return []


class NgramDrafter:
    """Looks for the longest suffix, `max_size` … `min_size` tokens, at its latest occurrence."""

    def __init__(self, *, min_size: int, max_size: int) -> None:
        self._min_size, self._max_size = min_size, max_size
        self._indices: dict[int, NgramIndex] = {}

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`."""
        self._indices[slot] = NgramIndex(self._min_size, self._max_size)
        self._indices[slot].extend(tokens.tolist())

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        self._indices[slot].extend(tokens.tolist())

    def release(self, slot: int) -> None:
        """See `Drafter.release`."""
        self._indices.pop(slot, None)

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        """See `Drafter.propose`; a row without an earlier occurrence proposes nothing."""
        rows = [
            self._indices[slot].continuation(num_draft_tokens) if slot in self._indices else []
            for slot in range(num_rows)
        ]
        return padded_proposal(rows)


def padded_proposal(rows: list[list[int]]) -> Proposal:
    """Chains of different lengths as one proposal."""
    width = max(map(len, rows))
    padded = [row + [NO_PROPOSAL] * (width - len(row)) for row in rows]
    return Proposal(torch.tensor(padded, dtype=torch.long).reshape(len(rows), width))
