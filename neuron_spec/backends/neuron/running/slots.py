"""Which slots hold a sequence, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from neuron_spec.backends.base import GREEDY, Decoding, Limits


@dataclass
class Row:
    """A running sequence: its last token, not in the cache yet, and that token's position."""

    token: int
    position: int
    decoding: Decoding = GREEDY

    def advance(self, tokens: Sequence[int]) -> None:
        """Go on behind committed tokens."""
        self.token, self.position = tokens[-1], self.position + len(tokens)


R = TypeVar("R")


class Slots(Generic[R]):
    """Rows by slot."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rows: dict[int, R] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __getitem__(self, slot: int) -> R:
        return self._rows[slot]

    def __setitem__(self, slot: int, row: R) -> None:
        self._rows[slot] = row

    @property
    def numbers(self) -> list[int]:
        """The taken ones, rising."""
        return sorted(self._rows)

    @property
    def rows(self) -> list[R]:
        """In the order of their slots."""
        return [self._rows[slot] for slot in self.numbers]

    def check_prompt(
        self, slot: int, prompt_ids: Sequence[int], longest: int | None = None
    ) -> None:
        """Whether a prompt may start.

        Args:
            longest: in tokens; None for that of the limits.

        Raises:
            ValueError: no such slot, or it is taken, or the prompt is empty or too long.
        """
        if not 0 <= slot < self._limits.batch_size or slot in self._rows:
            raise ValueError(f"slot {slot} is not free")
        longest = longest or self._limits.max_prompt_tokens
        if not 1 <= len(prompt_ids) <= longest:
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens: expected 1 … {longest}")

    def check_draft_length(self, num_draft_tokens: int) -> None:
        """Whether k is possible.

        Raises:
            ValueError: it is not.
        """
        if not 0 <= num_draft_tokens <= self._limits.num_draft_tokens:
            raise ValueError(f"k = {num_draft_tokens} is beyond {self._limits.num_draft_tokens}")

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._rows.pop(slot, None)
