"""The draft length k by load: what pays for one request costs throughput when many run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DraftLength:
    """k for every number of running requests.

    Attributes:
        bands: (from so many running requests on, k), rising from 1; the last band that has begun
            counts. Without bands nothing is drafted.
    """

    bands: tuple[tuple[int, int], ...] = ()

    @classmethod
    def constant(cls, num_draft_tokens: int) -> DraftLength:
        """The same k whatever runs."""
        return cls(((1, num_draft_tokens),))

    @classmethod
    def by_load(cls, bands: Sequence[tuple[int, int]], num_draft_tokens: int) -> DraftLength:
        """The spec's `draft.by_load`, or `draft.num_draft_tokens` where it is empty."""
        return cls(tuple(bands)) if bands else cls.constant(num_draft_tokens)

    def at(self, num_running: int) -> int:
        """k for the next step."""
        begun = [k for first, k in self.bands if first <= num_running]
        return begun[-1] if begun else 0
