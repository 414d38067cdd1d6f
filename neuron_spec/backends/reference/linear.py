"""A matrix product that is fast for the few rows that decoding has.

On a CPU the weight is packed once: for the compiled kernels where there are any, else into oneDNN's
blocked layout (PyTorch's own `F.linear` runs one float32 row on a single core and is slower on 2 or
3 rows than on 8). Elsewhere, or where this build of PyTorch lacks the packing, and for as many rows
as a prompt has, `F.linear` is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.native.binding import Native
from neuron_spec.backends.reference.native.packing import Packed
from neuron_spec.sampling import best_ids

_ROWS_PACKED_FOR = 8  # a hint: the layout stays valid for any number of rows


class Linear:
    """`x @ weight.T + bias` for one weight [out, in], or several side by side that share inputs."""

    def __init__(
        self,
        weight: Tensor | Sequence[Tensor],
        bias: Tensor | None = None,
        *,
        native: Native | None = None,
    ) -> None:
        self.parts = (weight,) if isinstance(weight, Tensor) else tuple(weight)
        self.in_features = self.parts[0].shape[1]
        self._sizes = [len(part) for part in self.parts]
        self.out_features = sum(self._sizes)
        self.bias = bias
        self._native = native
        self._onednn: Tensor | None = None
        if native is None:
            whole = torch.cat(self.parts) if len(self.parts) > 1 else self.parts[0]
            is_packed = whole.device.type == "cpu" and _can_pack(whole.dtype)
            self._onednn = _pack(whole) if is_packed else None
            self.parts = () if is_packed else (whole,)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        if self._native is not None and self._native.takes(x.numel() // self.in_features):
            rows = self._rows(x)
            is_wide = self._native.is_wide(rows.shape[0])
            product = self._native.kernels.linear(self.packed, rows, is_wide=is_wide)
            return product.to(x.dtype).view(*x.shape[:-1], self.out_features)
        if self._onednn is not None:
            pointwise = torch.ops.mkldnn._linear_pointwise
            return cast(Tensor, pointwise(x, self._onednn, self.bias, "none", [], ""))
        if len(self.parts) == 1:
            return F.linear(x, self.parts[0], self.bias)
        products = torch.cat([F.linear(x, part) for part in self.parts], dim=-1)
        return products if self.bias is None else products + self.bias

    def best(self, x: Tensor) -> Tensor:
        """[..., in] -> [...] int64: the place of the largest output, the first on ties, to the bit
        what `best_ids` finds in the outputs."""
        if self._native is not None and self._native.takes(x.numel() // self.in_features):
            rows = self._rows(x)
            is_wide = self._native.is_wide(rows.shape[0])
            ids = self._native.kernels.largest(
                self.packed, rows, is_wide=is_wide, as_bfloat16=x.dtype == torch.bfloat16
            )
            return ids.view(x.shape[:-1])
        return best_ids(self(x))

    def _rows(self, x: Tensor) -> Tensor:
        """As the kernels take them."""
        return x.reshape(-1, self.in_features).float().contiguous()

    def apart(self, x: Tensor) -> Sequence[Tensor]:
        """The same of every weight for itself; where they are products of their own nothing is
        joined."""
        native, num_rows = self._native, x.numel() // self.in_features
        if native is None or native.takes(num_rows) or self.bias is not None:
            joined: Sequence[Tensor] = self(x).split(self._sizes, dim=-1)
            return joined
        return [F.linear(x, part) for part in self.parts]

    @cached_property
    def packed(self) -> Packed:
        """For the kernels; packed when it is first used."""
        return self.packed_as(are_gated=False)

    def packed_as(self, *, are_gated: bool) -> Packed:
        """The weights for the kernels, see `Kernels.pack`; here they are dropped unless something
        may still take them."""
        assert self._native is not None
        packed = self._native.pack(self.parts, self.bias, are_gated=are_gated)
        if not self._native.keeps_weights:
            self.parts = ()
        return packed


def _pack(weight: Tensor) -> Tensor:
    pack = cast(Callable[..., Tensor], torch.ops.mkldnn._reorder_linear_weight)
    return pack(weight.contiguous(), _ROWS_PACKED_FOR)


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Try it once a dtype on a small product: the operators are private and may be missing."""
    if not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return False
    x, weight = torch.ones(1, 8, dtype=dtype), torch.ones(8, 8, dtype=dtype)
    try:
        product = torch.ops.mkldnn._linear_pointwise(x, _pack(weight), None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool((product == 8).all())
