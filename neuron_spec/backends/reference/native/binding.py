"""The compiled library as Python sees it; the structures are those of `kernels.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuron_spec.backends.reference.native.packing import (
    LANES,
    NUMBERS,
    Packed,
    interleaved,
    padded,
    quantize,
)
from neuron_spec.backends.reference.native.pages import LargePages


class Weights(Structure):
    """Packed weights of one product."""

    _fields_ = [("data", c_void_p), ("scales", c_void_p), ("bias", c_void_p)]


class LayerParts(Structure):
    """One layer and its KV cache; pointers to float32 norms, or null."""

    _fields_ = [
        *((name, Weights) for name in ("qkv", "output", "gate_up", "down")),
        *((f"{name}_norm", c_void_p) for name in ("input", "hidden", "query", "key", "mlp")),
        ("keys", c_void_p),
        ("values", c_void_p),
    ]


class Stack(Structure):
    """Layers that follow each other."""

    _fields_ = [
        ("layers", POINTER(LayerParts)),
        *(
            (name, c_int64)
            for name in (
                "num_layers", "weights", "cache", "hidden", "ffn", "heads", "kv_heads", "head_dim",
                "cache_length", "is_eagle3",
            )
        ),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("eps", c_double),
        ("threads", c_int64),
    ]  # fmt: skip


class Pass(Structure):
    """What goes through the layers."""

    _fields_ = [
        *((name, c_void_p) for name in ("x", "out", "taps", "tap_layers")),
        *((name, c_int64) for name in ("num_taps", "rows", "count", "first_slot")),
        *((name, c_void_p) for name in ("starts", "positions", "origins", "sees")),
        ("width", c_int64),
        ("wide", c_int64),
    ]


class Kernels:
    """The library; calls release Python's interpreter lock."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or AttributeError where it is no such library."""
        self.path = path
        library = ctypes.CDLL(str(path))
        self._linear, self._layers = library.neuron_spec_linear, library.neuron_spec_layers
        self._largest, self._pack = library.neuron_spec_largest, library.neuron_spec_pack
        for function in (self._linear, self._layers, self._largest, self._pack):
            function.restype = None
        product = POINTER(Weights), c_int64, c_void_p, c_int64, c_int64, c_int64, c_void_p
        self._linear.argtypes = [*product, c_int64, c_int64]
        self._largest.argtypes = [*product, c_int64, c_int64, c_int64]
        self._layers.argtypes = [POINTER(Stack), POINTER(Pass)]
        self._pack.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64]
        self._has_wide = library.neuron_spec_has_wide
        self._has_wide.argtypes, self._has_wide.restype = [c_int64], c_int64

    def has_wide(self, numbers: str) -> bool:
        """Whether the processor has instructions for wide passes over such weights: it multiplies
        tiles (AMX), and this process may let it, or pairs of bfloat16 (AVX512_BF16)."""
        return bool(self._has_wide(NUMBERS[numbers]))

    def pack(
        self,
        weights: Sequence[Tensor],
        bias: Tensor | None = None,
        *,
        is_int8: bool = False,
        are_gated: bool = False,
        pages: LargePages | None = None,
    ) -> Packed:
        """Float32 or bfloat16 weights [out, in], which share inputs, as one.

        Args:
            weights: side by side; with `are_gated` 16 outputs of the first, 16 of the second, and
                so on, for `layers`.
            pages: in which memory.
        """
        quantized = [quantize(weight) for weight in weights] if is_int8 else []
        stored = [whole for whole, _ in quantized] or [weight.contiguous() for weight in weights]
        arrange = interleaved if are_gated else torch.cat
        rows = padded(arrange([_addresses(weight) for weight in stored]))
        in_features, dtype = stored[0].shape[1], stored[0].dtype
        inputs_a_word = 2 if dtype == torch.bfloat16 else 1
        shape = len(rows) // LANES, -(-in_features // inputs_a_word), LANES * inputs_a_word
        empty = pages.empty if pages else torch.empty
        data = empty(*shape, dtype=dtype)
        row_bytes, word_bytes = in_features * dtype.itemsize, inputs_a_word * dtype.itemsize
        threads = torch.get_num_threads()
        self._pack(rows.data_ptr(), shape[0], row_bytes, word_bytes, data.data_ptr(), threads)
        return Packed(
            str(dtype).removeprefix("torch."),
            data,
            len(rows) if are_gated else sum(map(len, weights)),
            in_features,
            padded(arrange([scales for _, scales in quantized])) if quantized else None,
            None if bias is None else bias.float().contiguous(),
        )

    def linear(self, packed: Packed, x: Tensor, *, is_wide: bool = False) -> Tensor:
        """[rows, in] -> [rows, out], both float32 and contiguous.

        Args:
            is_wide: faster for many rows where `has_wide`, and rounds otherwise then: of float32
                weights in the last bits, beside bfloat16 weights x may be rounded to bfloat16.
        """
        y = x.new_empty(x.shape[0], packed.out_features)
        self._linear(*_product(packed, x, y), is_wide, torch.get_num_threads())
        return y

    def largest(
        self, packed: Packed, x: Tensor, *, is_wide: bool = False, as_bfloat16: bool = False
    ) -> Tensor:
        """[rows, in] float32 -> [rows] int64: where the largest of each row of `linear` is, which
        is not written; the first on ties.

        Args:
            as_bfloat16: of the products as that number type would have them.
        """
        ids = torch.empty(x.shape[0], dtype=torch.int64)
        self._largest(*_product(packed, x, ids), as_bfloat16, is_wide, torch.get_num_threads())
        return ids

    def layers(self, stack: Stack, passed: Pass) -> None:
        """Run a pass; what its pointers point to has to live until it returns."""
        self._layers(byref(stack), byref(passed))

    def multiplies(self) -> bool:
        """Whether a small product comes out right."""
        weight = torch.arange(3 * 5, dtype=torch.float32).view(3, 5)
        x = torch.arange(2 * 5, dtype=torch.float32).view(2, 5) - 4
        expected = x @ weight.T
        return all(
            torch.equal(self.linear(self.pack([weight]), x, is_wide=is_wide), expected)
            for is_wide in (False, True)
        )


def _addresses(weight: Tensor) -> Tensor:
    """[out, in] -> [out] int64: where each row is in memory."""
    out_features, in_features = weight.shape
    return weight.data_ptr() + torch.arange(out_features) * in_features * weight.element_size()


def weights_of(packed: Packed | None) -> Weights:
    """Pointers to packed weights, which have to outlive them; nulls for None."""
    if packed is None:
        return Weights()
    return Weights(*(pointer(part) for part in (packed.data, packed.scales, packed.bias)))


def _product(packed: Packed, x: Tensor, to: Tensor) -> tuple[Any, ...]:
    """What every product is told first."""
    weights, numbers = byref(weights_of(packed)), NUMBERS[packed.numbers]
    sizes = *x.shape, packed.out_features
    return weights, numbers, x.data_ptr(), *sizes, to.data_ptr()


def pointer(tensor: Tensor | None) -> int | None:
    """Its address; None is null."""
    return None if tensor is None else tensor.data_ptr()


@dataclass(frozen=True)
class Native:
    """How products go through the kernels.

    Attributes:
        max_rows: how many rows a product has at most so that a row's bits are its own whatever
            stands beside it; None is any number.
        takes_wide: whether wider ones are theirs too, see `Kernels.has_wide`.
        is_int8: whether weights are rounded to int8.
        keeps_weights: whether weights stay beside their packed form, because something else may
            still take them.
        pages: where packed weights go.
    """

    kernels: Kernels
    max_rows: int | None = None
    takes_wide: bool = False
    is_int8: bool = False
    keeps_weights: bool = True
    pages: LargePages = field(default_factory=LargePages, compare=False)

    def pack(
        self, weights: Sequence[Tensor], bias: Tensor | None = None, *, are_gated: bool = False
    ) -> Packed:
        """See `Kernels.pack`."""
        return self.kernels.pack(
            weights, bias, is_int8=self.is_int8, are_gated=are_gated, pages=self.pages
        )

    def takes(self, num_rows: int) -> bool:
        """Whether a product of so many rows is theirs."""
        return self.takes_wide or not self.is_wide(num_rows)

    def is_wide(self, num_rows: int) -> bool:
        """Whether so many rows are more than `max_rows`."""
        return self.max_rows is not None and num_rows > self.max_rows
