"""A stack of layers as the kernels run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import addressof, c_int64

import torch
from torch import Tensor

from neuron_spec.backends.reference.cache import KVCache, Window
from neuron_spec.backends.reference.native.binding import (
    LayerParts,
    Native,
    Pass,
    Stack,
    pointer,
    weights_of,
)
from neuron_spec.backends.reference.native.packing import NUMBERS, Packed

Parts = tuple[Mapping[str, Packed], Mapping[str, Tensor]]
"""A layer's products, and its norms' weights (float32), by their names in the kernels."""


class NativeLayers:
    """Runs what `Decoder.run` runs."""

    def __init__(
        self,
        native: Native,
        layers: Sequence[Parts],
        cache: KVCache,
        *,
        tables: tuple[Tensor, Tensor],
        taps: Sequence[int],
        num_heads: int,
        is_eagle3: bool,
        eps: float,
    ) -> None:
        """`tables`: float32 cosines and sines [length, head_dim]."""
        self._native = native
        self._kept = layers, cache, tables  # the stack has pointers into them
        caches = zip(layers, cache.keys, cache.values, strict=True)
        parts = [_part(*layer, keys, values) for layer, keys, values in caches]
        _, kv_heads, length, head_dim = cache.keys[0].shape
        products = layers[0][0]
        down = products["down"]
        self._stack = Stack(
            layers=(LayerParts * len(parts))(*parts), num_layers=len(parts),
            weights=NUMBERS[down.numbers], cache=NUMBERS[_name(cache.keys[0].dtype)],
            hidden=down.out_features, ffn=down.in_features,
            heads=num_heads, kv_heads=kv_heads, head_dim=head_dim, cache_length=length,
            is_eagle3=is_eagle3, cos=pointer(tables[0]), sin=pointer(tables[1]), eps=eps,
        )  # fmt: skip
        self._taps = (c_int64 * len(taps))(*taps)

    def takes(self, num_rows: int) -> bool:
        """Whether a pass of so many tokens is theirs."""
        return self._native.takes(num_rows)

    def __call__(self, x: Tensor, window: Window) -> tuple[Tensor, Tensor | None]:
        """Inputs [rows, n, hidden], in EAGLE-3 [rows, n, 2 x hidden] -> what `Decoder` returns."""
        rows, count, _ = x.shape
        given = x.float().contiguous()
        out = given.new_empty(rows, count, self._stack.hidden)
        taps = given.new_empty(len(self._taps), *out.shape)
        starts = (c_int64 * rows)(*window.starts)
        passed = Pass(
            x=pointer(given), out=pointer(out), taps=pointer(taps),
            tap_layers=addressof(self._taps), num_taps=len(self._taps),
            rows=rows, count=count, first_slot=window.first_slot, starts=addressof(starts),
            wide=self._native.is_wide(rows * count),
        )  # fmt: skip
        if window.branches is not None:
            origins = (c_int64 * rows)(*window.branches.origins)
            positions = window.positions.contiguous()
            sees = window.branches.mask.to(torch.uint8).contiguous()
            passed.origins, passed.positions = addressof(origins), pointer(positions)
            passed.sees, passed.width = pointer(sees), sees.shape[2]
        self._stack.threads = torch.get_num_threads()
        self._native.kernels.layers(self._stack, passed)
        tapped = torch.cat(tuple(taps), dim=-1).to(x.dtype) if self._taps else None
        return out.to(x.dtype), tapped


def _part(
    products: Mapping[str, Packed], norms: Mapping[str, Tensor], keys: Tensor, values: Tensor
) -> LayerParts:
    weights = {name: weights_of(packed) for name, packed in products.items()}
    pointers = {f"{name}_norm": pointer(weight) for name, weight in norms.items()}
    return LayerParts(**weights, **pointers, keys=pointer(keys), values=pointer(values))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
