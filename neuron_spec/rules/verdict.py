"""What every verification rule returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """How much of a drafted chain is kept, row by row.

    Attributes:
        num_accepted: [batch] int64, length of the accepted prefix, 0 … k.
        next_tokens: [batch] int64, the target's own token after that prefix: the correction at the
            first mismatch, or the bonus token when all k were accepted.
    """

    num_accepted: Tensor
    next_tokens: Tensor
