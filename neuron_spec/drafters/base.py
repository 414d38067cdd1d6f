"""What every drafter provides. Drafters keep their own state by slot and see only tensors."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

NO_PROPOSAL = -1
"""Fills the places of a row that has fewer proposals; never equal to a token, so never accepted."""


class Drafter(Protocol):
    """Proposes tokens for a batch of slots that advance at their own pace."""

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """Start a sequence.

        Args:
            tokens: [n + 1] ids: the prompt, then the first new token.
            features: [n, feature] the target's features at the prompt's positions.
        """

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """Take in what a step committed.

        Args:
            tokens: [n] committed ids.
            features: [n, feature] the target's features one position before each of them.
        """

    def propose(self, num_rows: int, num_draft_tokens: int) -> Tensor:
        """Draft for slots 0 … num_rows-1; rows of free slots hold anything.

        Returns:
            [num_rows, width] ids, width at most `num_draft_tokens`; `NO_PROPOSAL` fills rows that
            have fewer than others.
        """

    def release(self, slot: int) -> None:
        """Forget a sequence."""
