"""Attention over a cache, whoever decides what is seen."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """[rows, n, heads, dim] over [rows, kv_heads, span, dim] -> [rows, n, heads, dim].

    The query heads that share a key head are stacked as more queries, so keys are not repeated.
    """
    rows, count, heads, dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    stacked = query.view(rows, count, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    stacked = stacked.reshape(rows, kv_heads, group * count, dim)
    if mask is not None and group > 1:
        mask = mask.repeat(1, 1, group, 1)
    output = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=mask)
    output = output.view(rows, kv_heads, group, count, dim).permute(0, 3, 1, 2, 4)
    return output.reshape(rows, count, heads, dim)
