"""Prompt lookup: propose what followed the last tokens when they occurred before.

Needs no weights. Source: apoorvumang/prompt-lookup-decoding; transformers'
`prompt_lookup_num_tokens` and vLLM's n-gram speculator do the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_spec.drafters.base import NO_PROPOSAL


class NgramDrafter:
    """Looks for the longest suffix, `max_size` … `min_size` tokens, at its latest occurrence."""

    def __init__(self, *, min_size: int, max_size: int) -> None:
        self._min_size, self._max_size = min_size, max_size
        self._histories: dict[int, list[int]] = {}

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`."""
        self._histories[slot] = tokens.tolist()

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        self._histories[slot] += tokens.tolist()

    def release(self, slot: int) -> None:
        """See `Drafter.release`."""
        self._histories.pop(slot, None)

    def propose(self, num_rows: int, num_draft_tokens: int) -> Tensor:
        """See `Drafter.propose`; a row without an earlier occurrence proposes nothing."""
        rows = [
            self._row(self._histories.get(slot, []), num_draft_tokens) for slot in range(num_rows)
        ]
        width = max(map(len, rows))
        padded = [row + [NO_PROPOSAL] * (width - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.long).reshape(num_rows, width)

    def _row(self, history: list[int], num_draft_tokens: int) -> list[int]:
        for size in range(min(self._max_size, len(history) - 1), self._min_size - 1, -1):
            end = find_latest(history, size)
            if end is not None:
                return history[end : end + num_draft_tokens]
        return []


def find_latest(history: list[int], size: int) -> int | None:
    """Index after the latest earlier occurrence of the last `size` tokens, or None."""
    suffix = history[-size:]
    for start in range(len(history) - size - 1, -1, -1):
        if history[start : start + size] == suffix:
            return start + size
    return None
