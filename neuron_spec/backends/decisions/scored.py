"""What a target makes of drafted tokens, as far as it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from neuron_spec.sampling import best_ids


class Scored(Protocol):
    """At the root and after every drafted token. Greedy rows without options ask for `best` alone,
    which some targets have without writing any logits."""

    @property
    def logits(self) -> Tensor:
        """[rows, n + 1, vocab]"""

    @property
    def best(self) -> Tensor:
        """[rows, n + 1], to the id what `best_ids` makes of the logits."""


@dataclass(frozen=True)
class KnownLogits:
    """Of a target that tells all its logits, [rows, n + 1, vocab]."""

    logits: Tensor

    @property
    def best(self) -> Tensor:
        """See `Scored`."""
        return best_ids(self.logits)
