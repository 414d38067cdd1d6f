"""A decoder-only transformer of the Llama kind over a static cache, for inference only.

The same layers serve the target and the EAGLE head, which differ in what goes in and what is
normed. Arithmetic follows Hugging Face's models; tests compare the logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.cache import KVCache, Window
from neuron_spec.backends.reference.native.binding import Native
from neuron_spec.backends.reference.native.layers import NativeLayers
from neuron_spec.backends.reference.native.packing import Packed
from neuron_spec.backends.reference.parameters import Parameters
from neuron_spec.backends.reference.pinned import PinnedWindow
from neuron_spec.backends.reference.recorded import FixedWindow, Record, RecordedPasses
from neuron_spec.backends.reference.rope import rotary_tables, rotate
from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.drafters import Branches

View = Window | PinnedWindow | FixedWindow
"""Where a pass writes, and what it may see."""

PREFILL_CHUNK = 512  # bounds the attention mask of long prompts


@dataclass(frozen=True)
class Norm:
    """RMS norm (arXiv:1910.07467) over the last dimension."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, parameters: Parameters, name: str, eps: float) -> Norm | None:
        """The norm of that name, or None."""
        weight = parameters.optional(name)
        return None if weight is None else cls(weight, eps)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention:
    """Grouped-query attention of one layer; q, k and v are one product."""

    def __init__(self, config: ModelConfig, prefix: str, parameters: Parameters) -> None:
        self.head_dim = config.head_dim
        self.qkv = parameters.linear(*(f"{prefix}{name}_proj" for name in "qkv"))
        self.output = parameters.linear(f"{prefix}o_proj")
        self.head_norms = [
            Norm.of(parameters, f"{prefix}{name}_norm.weight", config.rms_norm_eps) for name in "qk"
        ]

    def __call__(
        self, x: Tensor, tables: tuple[Tensor, Tensor], window: View, kv: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[rows, n, hidden] -> [rows, n, hidden]; writes this layer's keys and values."""
        rows, count, _ = x.shape
        mixed = self.qkv.apart(x)
        query, key, value = (part.view(rows, count, -1, self.head_dim) for part in mixed)
        query, key = (
            rotate(norm(part) if norm else part, *tables)
            for norm, part in zip(self.head_norms, (query, key), strict=True)
        )
        return self.output(window.attend(query, key, value, kv).reshape(rows, count, -1))


class Layer:
    """One decoder layer; `input_norm` is None in an EAGLE v1 head."""

    def __init__(self, config: ModelConfig, prefix: str, parameters: Parameters) -> None:
        eps = config.rms_norm_eps
        self.input_norm = Norm.of(parameters, f"{prefix}input_layernorm.weight", eps)
        self.attention = Attention(config, f"{prefix}self_attn.", parameters)
        self.mlp_norm = Norm(parameters.read(f"{prefix}post_attention_layernorm.weight"), eps)
        self.gate_up = parameters.linear(*(f"{prefix}mlp.{name}_proj" for name in ("gate", "up")))
        self.down = parameters.linear(f"{prefix}mlp.down_proj")

    def __call__(
        self, x: Tensor, tables: tuple[Tensor, Tensor], window: View, kv: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[rows, n, hidden] -> [rows, n, hidden]."""
        normed = self.input_norm(x) if self.input_norm else x
        return self.feed_forward(x + self.attention(normed, tables, window, kv), window)

    def feed_forward(self, x: Tensor, window: View) -> Tensor:
        """The layer's second half, [..., hidden] -> [..., hidden]."""
        gate, up = self.gate_up.apart(self.mlp_norm(x))
        return x + self.down(window.silu(gate) * up)

    @cached_property
    def products(self) -> dict[str, Packed]:
        """Its products by their names in the kernels."""
        return {
            "qkv": self.attention.qkv.packed,
            "output": self.attention.output.packed,
            "gate_up": self.gate_up.packed_as(are_gated=True),
            "down": self.down.packed,
        }

    @property
    def norms(self) -> dict[str, Norm | None]:
        """Its norms by their names in the kernels."""
        query, key = self.attention.head_norms
        return {"input": self.input_norm, "query": query, "key": key, "mlp": self.mlp_norm}


class Eagle3Layer(Layer):
    """The layer of an EAGLE-3 head: attention reads embedding and feature, each with its norm; the
    residual is the feature before its norm (NxDI `models/llama/modeling_llama.py`)."""

    def __init__(self, config: ModelConfig, prefix: str, parameters: Parameters) -> None:
        super().__init__(config, prefix, parameters)
        weight = parameters.read(f"{prefix}hidden_norm.weight")
        self.hidden_norm = Norm(weight, config.rms_norm_eps)

    @property
    def norms(self) -> dict[str, Norm | None]:
        """See `Layer.norms`."""
        return {**super().norms, "hidden": self.hidden_norm}

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
        native: Native | None = None,
    ) -> None:
        self.layers, self._taps = layers, taps
        shape = (num_slots, config.num_key_value_heads, length, config.head_dim)
        self.cache = KVCache(len(layers), shape, dtype=dtype, device=device)
        cos, sin = rotary_tables(config, length, device)
        self._cos, self._sin = cos.to(dtype), sin.to(dtype)
        self._native = self._native_layers(config, native) if native else None
        self._recorded: RecordedPasses | None = None

    def record_passes(self, record: Record) -> None:
        """Record those that `RecordedPasses` takes, from now on."""
        self._recorded = RecordedPasses(self._run, record, length=self.cache.length)

    def _native_layers(self, config: ModelConfig, native: Native) -> NativeLayers:
        return NativeLayers(
            native,
            [(layer.products, _weights(layer.norms)) for layer in self.layers],
            self.cache,
            tables=(self._cos.float(), self._sin.float()),
            taps=self._taps,
            num_heads=config.num_attention_heads,
            is_eagle3=isinstance(self.layers[0], Eagle3Layer),
            eps=config.rms_norm_eps,
        )

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
        if isinstance(window, Window):
            for faster in (self._native, self._recorded):
                if faster and faster.takes(x.shape[0] * x.shape[1]):
                    return faster(x, window)
        return self._run(x, window)

    def _run(self, x: Tensor, window: View) -> tuple[Tensor, Tensor | None]:
        """The layers one after another."""
        positions = window.positions
        tables = (self._cos[positions].unsqueeze(2), self._sin[positions].unsqueeze(2))
        kv = zip(self.cache.keys, self.cache.values, strict=True)
        tapped = []
        for index, (layer, pair) in enumerate(zip(self.layers, kv, strict=True)):
            if index in self._taps:
                tapped.append(x)
            x = layer(x, tables, window, pair)
        return x, torch.cat(tapped, dim=-1) if tapped else None


def _weights(norms: Mapping[str, Norm | None]) -> dict[str, Tensor]:
    return {name: norm.weight.float() for name, norm in norms.items() if norm}
