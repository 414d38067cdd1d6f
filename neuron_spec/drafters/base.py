"""What every drafter provides. Drafters keep their own state by slot and see only tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from neuron_spec.sampling import best_ids

NO_PROPOSAL = -1
"""Fills the places of a row that has fewer proposals; never equal to a token, so never accepted."""

Choose = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""logits [rows, 1, vocab] -> ids [rows, 1], and the distributions [rows, 1, vocab] that they were
drawn from, or None where nothing was drawn."""


@dataclass(frozen=True)
class Branches:
    """How the nodes of a tree, side by side in the cache, stand to each other.

    Attributes:
        origins: the position of every row's root, whose entry is the first of its window.
        depths: [rows, n] int64, distance of every new node from the root.
        mask: [rows, n, w] bool, which of the w entries from the origin on each new node sees: its
            ancestors and itself.
    """

    origins: Sequence[int]
    depths: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens of a batch: below each row's last token a chain, or a tree.

    Attributes:
        tokens: [rows, n] ids, `NO_PROPOSAL` where a row has fewer than others.
        parents: [rows, n] int64, the place of every token's parent: 0 is the row's last token,
            i + 1 is `tokens[:, i]`; a parent stands before its children. None for chains.
        probs: [rows, n, vocab] float32, what every token of a chain was drawn from; None where
            tokens were chosen, not drawn.
    """

    tokens: Tensor
    parents: Tensor | None = None
    probs: Tensor | None = None


def choose_best(logits: Tensor) -> tuple[Tensor, None]:
    """The `Choose` of greedy drafting: ties go to the lowest id."""
    return best_ids(logits), None


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

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        """Draft for slots 0 … num_rows-1; rows of free slots hold anything.

        Args:
            num_draft_tokens: the most that may be proposed a row.
            choose: how a chain's tokens are chosen; trees take the best ones, whatever it is.
        """

    def release(self, slot: int) -> None:
        """Forget a sequence."""
