"""The target's layers over whole sequences, packed into one batch without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from common import TargetConfig, rotate
from torch import Tensor


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of a float32 residual."""
    return F.rms_norm(x, weight.shape, weight, eps)


@dataclass
class Layer:
    """Weights of one target layer: matrices (fused where inputs agree) and float32 norms.

    The residual stays float32; products have the matrices' type.
    """

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    attention_norm: Tensor
    mlp_norm: Tensor

    def queries_keys_values(self, x: Tensor, eps: float) -> Tensor:
        """Queries, keys and values side by side, [N, width] of the residual [N, H]."""
        return F.linear(normed(x, self.attention_norm, eps).to(self.qkv.dtype), self.qkv)

    def mlp(self, x: Tensor, eps: float) -> Tensor:
        """The residual after the MLP."""
        inputs = normed(x, self.mlp_norm, eps).to(self.gate_up.dtype)
        gate, up = F.linear(inputs, self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate).mul_(up), self.down)

    def packed(
        self, x: Tensor, lengths: list[int], config: TargetConfig, rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The whole layer on sequences one after the other, x [sum(lengths), H].

        Also returns the rotated keys and the values of each, [length, kv heads, d]. rope: tables of
        cos and sin.
        """
        c, outputs, cached = config, [], []
        for part in self.queries_keys_values(x, c.eps).split(lengths):
            n = len(part)
            heads = part.view(n, c.heads + 2 * c.kv_heads, c.head_dim)
            cos, sin = (table[:n, None] for table in rope)
            turned = rotate(heads[:, : c.heads + c.kv_heads].float(), cos, sin).to(part.dtype)
            q, k = turned.split((c.heads, c.kv_heads), dim=1)
            v = heads[:, c.heads + c.kv_heads :].contiguous()
            k = k.contiguous()
            attended = F.scaled_dot_product_attention(
                *(t.transpose(0, 1)[None] for t in (q, k, v)), is_causal=True, enable_gqa=True
            )
            outputs.append(attended[0].transpose(0, 1).reshape(n, -1))
            cached.append((k, v))
        x = x + F.linear(torch.cat(outputs), self.out)
        return self.mlp(x, c.eps), cached


def fuse_layer(state: dict[str, Tensor], index: int, dtype: torch.dtype = torch.bfloat16) -> Layer:
    """Takes one layer out of a state dict."""

    def weight(*names: str) -> Tensor:
        rows = [state[f"layers.{index}.{name}.weight"] for name in names]
        return torch.cat(rows).to(dtype)

    return Layer(
        qkv=weight("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=weight("self_attn.o_proj"),
        gate_up=weight("mlp.gate_proj", "mlp.up_proj"),
        down=weight("mlp.down_proj"),
        attention_norm=state[f"layers.{index}.input_layernorm.weight"],
        mlp_norm=state[f"layers.{index}.post_attention_layernorm.weight"],
    )
