"""A matrix product that is fast for the few rows that decoding has.

On a CPU the weight is packed once into oneDNN's blocked layout: PyTorch's own `F.linear` runs one
float32 row on a single core and is slower on 2 or 3 rows than on 8. Elsewhere, or where this
build of PyTorch lacks the packing, `F.linear` is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

_ROWS_PACKED_FOR = 8  # a hint: the layout stays valid for any number of rows


class Linear:
    """`x @ weight.T + bias` for one weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._is_packed = weight.device.type == "cpu" and _can_pack(weight.dtype)
        self._weight = _pack(weight) if self._is_packed else weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        if not self._is_packed:
            return F.linear(x, self._weight, self._bias)
        return cast(
            Tensor,
            torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], ""),
        )


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
