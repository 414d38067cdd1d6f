"""A projection over some of the target's tokens, made one over all of them.

NxDI 0.9 knows no draft vocabulary: its projections have the target's rows. The rows of tokens that
the draft cannot propose are filled with the mean of the trained rows, so that their logit is the
mean of all trained logits: never above the largest one, whatever its sign, so greedy drafting is
unchanged. Zero rows would win whenever all trained logits are negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from neuron_spec.checkpoints.plans.base import refuse_quantized, row_bytes
from neuron_spec.checkpoints.tensors import COPY_BYTES, CheckpointFiles, StoredTensor
from neuron_spec.checkpoints.writer import ComputedTensor

if TYPE_CHECKING:
    from torch import Tensor

Rows = Callable[[int, int], "Tensor"]
"""(first, last) -> rows first … last - 1 of a matrix, [last - first, hidden]."""


def widen(
    name: str,
    head: StoredTensor,
    files: CheckpointFiles,
    *,
    token_ids: Tensor,
    vocab_size: int,
    source_map: StoredTensor,
    reading: str,
) -> ComputedTensor:
    """`head` [draft vocab, hidden] as an output of `vocab_size` rows.

    Args:
        token_ids: [draft vocab] int64, all different: the target's token of each row.
        source_map: where `token_ids` were read, and `reading` how.
    """
    refuse_quantized(head)
    ids, order = token_ids.sort()
    is_sorted = bool((order.diff() > 0).all())

    def rows(first: int, last: int) -> Tensor:
        """Mapped anew for every block, so that pages already used do not pile up in memory."""
        stored = files.read(head.name)
        return stored[first:last].clone() if is_sorted else stored[order[first:last]]

    def values() -> Iterator[Tensor]:
        return widened(rows, ids, vocab_size, max(1, COPY_BYTES // row_bytes(head)))

    how = f"rows scattered by {source_map.name} ({reading}), the other rows are the mean of them"
    shape = (vocab_size, head.shape[1])
    return ComputedTensor(name, shape, head.dtype, values, how, (head, source_map))


def widened(
    rows: Rows, token_ids: Tensor, vocab_size: int, num_block_rows: int
) -> Iterator[Tensor]:
    """A reduced projection over the whole vocabulary, block by block.

    Args:
        rows: the trained rows, in the order of `token_ids`.
        token_ids: [draft vocab] int64, strictly increasing: the target's token of each row.
        num_block_rows: rows of one block.

    Returns:
        Blocks [rows, hidden] in the dtype of `rows`, `vocab_size` rows together.
    """
    import torch

    count = len(token_ids)
    total = rows(0, 1).double().sum(dim=0) * 0
    for first in range(0, count, num_block_rows):
        total += rows(first, min(first + num_block_rows, count)).double().sum(dim=0)
    mean = (total / count).to(rows(0, 1).dtype)
    for start in range(0, vocab_size, num_block_rows):
        end = min(start + num_block_rows, vocab_size)
        first, last = torch.searchsorted(token_ids, torch.tensor([start, end])).tolist()
        block = mean.expand(end - start, -1).clone()
        block[token_ids[first:last] - start] = rows(first, last)
        yield block
