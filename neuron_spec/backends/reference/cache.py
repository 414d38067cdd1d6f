"""A static KV cache: one block of memory a layer, a slot a sequence, no copies when tokens are
dropped. A sequence is as long as its owner says; what lies beyond is overwritten later."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.attention import attend, bias_of
from neuron_spec.drafters import Branches

SPAN_MULTIPLE = 64  # attention reads whole multiples, so that shapes repeat


class KVCache:
    """Keys and values of every layer: [slots, kv_heads, length, head_dim] each."""

    def __init__(
        self,
        num_layers: int,
        shape: tuple[int, int, int, int],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = shape[2]
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def keep(self, slot: int, origin: int, path: Sequence[int]) -> None:
        """Make the accepted branch of a tree a plain sequence: entry `origin + path[i]` moves to
        `origin + i`; what lies beyond is overwritten later."""
        if list(path) == list(range(len(path))):
            return
        places = torch.tensor(path, device=self.keys[0].device) + origin
        end = origin + len(path)
        for tensor in (*self.keys, *self.values):
            tensor[slot, :, origin:end] = tensor[slot, :, places]


class Window:
    """Where one forward pass writes and what it may see: rows `first_slot` … , n positions each.

    Entries are written side by side from `starts` on. In a chain an entry's place is its position;
    in a tree `branches` tells positions and who sees whom, and all see what lies before the root.

    Attributes:
        end: the place after the last entry.
        span: how much of the cache is read.
    """

    def __init__(
        self,
        starts: Sequence[int],
        num_positions: int,
        first_slot: int,
        cache: KVCache,
        branches: Branches | None = None,
    ) -> None:
        self.end = max(starts) + num_positions
        if self.end > cache.length:
            raise ValueError(f"position {self.end - 1} is beyond the cache of {cache.length}")
        self.starts, self.first_slot, self.branches = starts, first_slot, branches
        self.rows = slice(first_slot, first_slot + len(starts))
        self._start = starts[0] if len(starts) == 1 else None
        self._num_positions = num_positions
        self._device = cache.keys[0].device
        self._needs_mask = len(starts) > 1 or num_positions > 1 or branches is not None
        self.span = min(round_up(self.end), cache.length) if self._needs_mask else self.end
        self._bias: Tensor | None = None

    @cached_property
    def positions(self) -> Tensor:
        """[rows, n] position of every query."""
        if self.branches is None:
            return self.places
        return self._origins(self.branches) + self.branches.depths

    @cached_property
    def mask(self) -> Tensor | None:
        """[rows, 1, n, span] bool, True where a query may look; None if all may look at all."""
        return self.mask_over(self.span) if self._needs_mask else None

    def mask_over(self, span: int) -> Tensor:
        """[rows, 1, n, span] bool, True where a query may look."""
        if self.branches is not None:
            return self._ancestors(self.branches, span)
        columns = torch.arange(span, device=self._device)
        return (columns <= self.places[:, :, None])[:, None]

    @cached_property
    def places(self) -> Tensor:
        """[rows, n] where every entry is written."""
        offsets = torch.arange(self._num_positions, device=self._device)
        return torch.tensor(self.starts, device=self._device)[:, None] + offsets

    def _origins(self, branches: Branches) -> Tensor:
        return torch.tensor(branches.origins, device=self._device)[:, None]

    def _ancestors(self, branches: Branches, span: int) -> Tensor:
        origins, mask = self._origins(branches), branches.mask
        columns = torch.arange(span, device=mask.device) - origins  # [rows, span]
        width = mask.shape[2]
        inside = (columns >= 0) & (columns < width)
        index = columns.clamp(0, width - 1)[:, None].expand(-1, mask.shape[1], -1)
        seen = mask.gather(2, index) & inside[:, None]
        return (seen | (columns < 0)[:, None])[:, None]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Write key and value [rows, n, kv_heads, head_dim] into one layer's cache; what the
        queries [rows, n, heads, head_dim] make of all they see, in their shape."""
        keys, values = self.store(kv[0], key), self.store(kv[1], value)
        if self._bias is None and self.mask is not None:  # the same in every layer
            group = query.shape[2] // keys.shape[1]
            self._bias = bias_of(self.mask, group, query.dtype)
        return attend(query, keys, values, self._bias)

    def silu(self, x: Tensor) -> Tensor:
        """The activation, elementwise."""
        return F.silu(x)

    def store(self, cache: Tensor, new: Tensor) -> Tensor:
        """Write `new` [rows, n, kv_heads, head_dim]; return what is visible, [rows, kv_heads,
        span, head_dim], a view."""
        rows = cache[self.rows]
        if self._start is not None:
            end = self._start + self._num_positions
            rows[:, :, self._start : end] = new.transpose(1, 2)
        else:
            index = torch.arange(rows.shape[0], device=cache.device)[:, None]
            rows[index, :, self.places] = new
        return rows[:, :, : self.span]


def round_up(length: int) -> int:
    """The next whole multiple."""
    return -(-length // SPAN_MULTIPLE) * SPAN_MULTIPLE
