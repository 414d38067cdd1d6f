"""A decoder-only transformer of the Llama kind over a static cache, for inference only.

The same layers serve the target and the EAGLE head, which differ in what goes in and what is
normed. Arithmetic follows Hugging Face's models; tests compare the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.cache import KVCache, Window
from neuron_spec.backends.reference.linear import Linear
from neuron_spec.backends.reference.pinned import PinnedWindow
from neuron_spec.backends.reference.rope import rotary_tables, rotate
from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.drafters import Branches

Read = Callable[[str], Tensor]
"""A parameter by its key, in the model's dtype and on its device."""
Has = Callable[[str], bool]
View = Window | PinnedWindow
"""Where a pass writes, and what it may see."""

PREFILL_CHUNK = 512  # bounds the attention mask of long prompts


@dataclass(frozen=True)
class Norm:
    """RMS norm (arXiv:1910.07467) over the last dimension."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention:
    """Grouped-query attention of one layer; q, k and v are one product."""

    def __init__(self, config: ModelConfig, prefix: str, read: Read, has: Has) -> None:
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        parts = [f"{prefix}{name}_proj" for name in "qkv"]
        weight = torch.cat([read(f"{part}.weight") for part in parts])
        biases = [read(f"{part}.bias") for part in parts if has(f"{part}.bias")]
        self.qkv = Linear(weight, torch.cat(biases) if biases else None)
        output = f"{prefix}o_proj"
        has_bias = has(f"{output}.bias")
        self.output = Linear(read(f"{output}.weight"), read(f"{output}.bias") if has_bias else None)
        self.head_norms = [
            Norm(read(key), config.rms_norm_eps) if has(key) else None
            for key in (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight")
        ]

    def __call__(
        self, x: Tensor, tables: tuple[Tensor, Tensor], window: View, kv: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[rows, n, hidden] -> [rows, n, hidden]; writes this layer's keys and values."""
        rows, count, _ = x.shape
        heads, kv_heads, dim = self.num_heads, self.num_kv_heads, self.head_dim
        mixed = self.qkv(x).view(rows, count, heads + 2 * kv_heads, dim)
        query, key, value = mixed.split([heads, kv_heads, kv_heads], dim=2)
        query, key = (
            rotate(norm(part) if norm else part, *tables)
            for norm, part in zip(self.head_norms, (query, key), strict=True)
        )
        return self.output(window.attend(query, key, value, kv).reshape(rows, count, -1))


class Layer:
    """One decoder layer; `input_norm` is None in an EAGLE v1 head."""

    def __init__(self, config: ModelConfig, prefix: str, read: Read, has: Has) -> None:
        eps, input_norm = config.rms_norm_eps, f"{prefix}input_layernorm.weight"
        self.input_norm = Norm(read(input_norm), eps) if has(input_norm) else None
        self.attention = Attention(config, f"{prefix}self_attn.", read, has)
        self.mlp_norm = Norm(read(f"{prefix}post_attention_layernorm.weight"), eps)
        gate_up = [read(f"{prefix}mlp.{name}_proj.weight") for name in ("gate", "up")]
        self.gate_up = Linear(torch.cat(gate_up))
        self.down = Linear(read(f"{prefix}mlp.down_proj.weight"))

    def __call__(
        self, x: Tensor, tables: tuple[Tensor, Tensor], window: View, kv: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[rows, n, hidden] -> [rows, n, hidden]."""
        normed = self.input_norm(x) if self.input_norm else x
        return self.feed_forward(x + self.attention(normed, tables, window, kv), window)

    def feed_forward(self, x: Tensor, window: View) -> Tensor:
        """The layer's second half, [..., hidden] -> [..., hidden]."""
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(window.silu(gate) * up)


class Eagle3Layer(Layer):
    """The layer of an EAGLE-3 head: attention reads embedding and feature, each with its norm; the
    residual is the feature before its norm (NxDI `models/llama/modeling_llama.py`)."""

    def __init__(self, config: ModelConfig, prefix: str, read: Read, has: Has) -> None:
        super().__init__(config, prefix, read, has)
        self.hidden_norm = Norm(read(f"{prefix}hidden_norm.weight"), config.rms_norm_eps)

    def __call__(
        self, x: Tensor, tables: tuple[Tensor, Tensor], window: View, kv: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[rows, n, 2 x hidden], embedding then feature -> [rows, n, hidden]."""
        embedding, feature = x.chunk(2, dim=-1)
        normed = self.input_norm(embedding) if self.input_norm else embedding
        joined = torch.cat([normed, self.hidden_norm(feature)], dim=-1)
        return self.feed_forward(feature + self.attention(joined, tables, window, kv), window)


class Decoder:
    """A stack of layers with its own cache."""

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[Layer],
        *,
        num_slots: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
        taps: tuple[int, ...] = (),
    ) -> None:
        self.layers, self._taps = layers, taps
        shape = (num_slots, config.num_key_value_heads, length, config.head_dim)
        self.cache = KVCache(len(layers), shape, dtype=dtype, device=device)
        cos, sin = rotary_tables(config, length, device)
        self._cos, self._sin = cos.to(dtype), sin.to(dtype)

    def __call__(
        self,
        x: Tensor,
        starts: Sequence[int],
        first_slot: int,
        branches: Branches | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run inputs [rows, n, hidden] whose row i is stored from `starts[i]` on.

        Rows are slots `first_slot`, `first_slot + 1`, …; long inputs go through in chunks, the
        nodes of a tree (`branches`) never.

        Returns:
            The output [rows, n, hidden], and the inputs of the tapped layers side by side,
            [rows, n, taps x hidden], or None without taps.
        """
        if branches is not None:
            return self.run(x, Window(starts, x.shape[1], first_slot, self.cache, branches))
        pairs = []
        for index, chunk in enumerate(x.split(PREFILL_CHUNK, dim=1)):
            begins = [start + index * PREFILL_CHUNK for start in starts]
            pairs.append(self.run(chunk, Window(begins, chunk.shape[1], first_slot, self.cache)))
        if len(pairs) == 1:
            return pairs[0]
        tapped = [taps for _, taps in pairs if taps is not None]
        outputs = torch.cat([output for output, _ in pairs], dim=1)
        return outputs, torch.cat(tapped, dim=1) if tapped else None

    def run(self, x: Tensor, window: View) -> tuple[Tensor, Tensor | None]:
        """One pass of inputs [rows, n, hidden] through a window; what comes out as above."""
        positions = window.positions
        tables = (self._cos[positions].unsqueeze(2), self._sin[positions].unsqueeze(2))
        kv = zip(self.cache.keys, self.cache.values, strict=True)
        tapped = []
        for index, (layer, pair) in enumerate(zip(self.layers, kv, strict=True)):
            if index in self._taps:
                tapped.append(x)
            x = layer(x, tables, window, pair)
        return x, torch.cat(tapped, dim=-1) if tapped else None
