"""Attention over a cache, whoever decides what is seen."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def bias_of(mask: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """[rows, 1, n, span] bool, True where a query may look -> what `attend` adds to the scores,
    [rows, 1, group x n, span]: 0 or -inf.

    Args:
        group: query heads that share a key head.
    """
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, -torch.inf).repeat(1, 1, group, 1)


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """[rows, n, heads, dim] over [rows, kv_heads, span, dim] -> [rows, n, heads, dim].

    The query heads that share a key head are stacked as more queries, so keys are not repeated.

    Args:
        bias: see `bias_of`; None if all may look at all.
    """
    rows, count, heads, dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    stacked = query.view(rows, count, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    stacked = stacked.reshape(rows, kv_heads, group * count, dim)
    output = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=bias)
    output = output.view(rows, kv_heads, group, count, dim).permute(0, 3, 1, 2, 4)
    return output.reshape(rows, count, heads, dim)
