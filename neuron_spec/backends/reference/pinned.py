"""One forward pass whose shape never changes, so that a token's result depends on the tokens before
it and on nothing else, bit for bit: not on k, on its place in a window or tree, or on the batch.

- Every matrix product has the same number of rows, padding included. Kernels choose the order of a
  sum by that number; within one product they treat all rows alike, which `pin_check` tries out.
- Attention is computed a token at a time over exactly what it sees, in the order of positions, so
  that its shape follows from the token's position alone.
- Padding writes nothing into the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.attention import attend
from neuron_spec.drafters import Branches

# From so many elements on PyTorch gives every thread a share of an elementwise operation, also in
# the middle of a row; the last elements of a share are computed without vector instructions, whose
# exponential is another one (ATen `at::internal::GRAIN_SIZE`).
_ELEMENTS_SHARED_OUT = 32768


@dataclass(frozen=True)
class PinnedShape:
    """The shape of every pass.

    Attributes:
        num_rows: slots, running or not.
        width: positions of each, the largest k + 1.
    """

    num_rows: int
    width: int

    def padded(self, tokens: Tensor) -> Tensor:
        """Ids [rows, n] in the upper left corner of [num_rows, width] zeros."""
        rows, count = tokens.shape
        return F.pad(tokens, (0, self.width - count, 0, self.num_rows - rows))


@dataclass(frozen=True)
class _Row:
    """A running row: where it starts and, token by token, which of its tokens that one sees."""

    slot: int
    start: int
    paths: Sequence[Sequence[int]]
    is_chain: bool


class PinnedWindow:
    """A `Window` of a pinned pass: `count` of its places are filled in the slots of `starts`.

    Attributes:
        positions: [num_rows, width] of every query; 0 for padding.
    """

    def __init__(
        self,
        shape: PinnedShape,
        starts: Mapping[int, int],
        count: int,
        *,
        branches: Branches | None,
        device: torch.device,
    ) -> None:
        self._count = count
        self._rows = [
            _Row(slot, start, _paths(slot, count, branches), branches is None)
            for slot, start in starts.items()
        ]
        self.positions = torch.zeros(shape.num_rows, shape.width, dtype=torch.long)
        for row in self._rows:
            depths = torch.tensor([len(path) - 1 for path in row.paths])
            self.positions[row.slot, :count] = row.start + depths
        self.positions = self.positions.to(device)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: tuple[Tensor, Tensor]
    ) -> Tensor:
        """As `Window.attend`; zeros for padding."""
        output, side_by_side = torch.zeros_like(query), slice(0, self._count)
        for row in self._rows:
            caches, news = [cache[row.slot] for cache in kv], (key[row.slot], value[row.slot])
            self._store(row, caches, news, side_by_side)
            for column, path in enumerate(row.paths):
                if not row.is_chain:
                    self._store(row, caches, news, path)
                end = row.start + len(path)
                keys, values = (cache[None, :, :end] for cache in caches)
                one = query[row.slot, column].clone()  # at an address of the same alignment
                output[row.slot, column] = attend(one[None, None], keys, values, None)[0, 0]
            if not row.is_chain:
                self._store(row, caches, news, side_by_side)
        return output

    def silu(self, x: Tensor) -> Tensor:
        """[rows, n, width] -> the same, each row on its own where threads would share them out."""
        if x.device.type != "cpu" or x.numel() < _ELEMENTS_SHARED_OUT:
            return F.silu(x)
        return torch.stack([F.silu(row) for row in x.flatten(0, 1)]).view(x.shape)

    @staticmethod
    def _store(
        row: _Row, caches: Sequence[Tensor], news: Sequence[Tensor], nodes: slice | Sequence[int]
    ) -> None:
        """Write entries of these nodes from the row's start on; caches [kv_heads, length,
        head_dim], news [n, kv_heads, head_dim]."""
        for cache, new in zip(caches, news, strict=True):
            entries = new[nodes]
            cache[:, row.start : row.start + len(entries)] = entries.transpose(0, 1)


def _paths(slot: int, count: int, branches: Branches | None) -> list[list[int]]:
    if branches is None:
        return [list(range(column + 1)) for column in range(count)]
    return [mask.nonzero()[:, 0].tolist() for mask in branches.mask[slot]]
