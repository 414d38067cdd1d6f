"""The smallest draft heads and their target, byte by byte and without torch: to be damaged."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuron_spec.errors import CheckpointError

HIDDEN, INTERMEDIATE, VOCABULARY = 4, 4, 8
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}
_LAYER = {
    "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
    "self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    "post_attention_layernorm.weight": (HIDDEN,),
}
NUM_TARGET_LAYERS = 7  # the fewest that an EAGLE-3 head can have
KEPT_TOKENS = (0, 2, 3, 5, 7)  # the vocabulary of the EAGLE-3 head

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Name -> dtype, shape, values."""


def floats(shapes: dict[str, tuple[int, ...]], fill: int = 0) -> Tensors:
    """Float32 tensors, every byte of their values `fill`."""
    return {
        name: ("F32", shape, bytes([fill]) * (4 * math.prod(shape)))
        for name, shape in shapes.items()
    }


def eagle_tensors(fill: int = 0) -> Tensors:
    """An EAGLE v1 head as published."""
    layer = {f"layers.0.{name}": shape for name, shape in _LAYER.items()}
    return floats({"fc.weight": (HIDDEN, 2 * HIDDEN), **layer}, fill)


def eagle3_tensors() -> Tensors:
    """An EAGLE-3 head over a part of the vocabulary, with both of its maps."""
    layer = {f"midlayer.{name}": shape for name, shape in _LAYER.items()}
    for part in "qkv":
        name = f"midlayer.self_attn.{part}_proj.weight"
        layer[name] = (layer[name][0], 2 * HIDDEN)
    norms = dict.fromkeys(("input_layernorm.weight", "hidden_norm.weight"), (HIDDEN,))
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (len(KEPT_TOKENS), HIDDEN),
        **layer,
        **{f"midlayer.{name}": shape for name, shape in norms.items()},
    }
    offsets = [token - row for row, token in enumerate(KEPT_TOKENS)]
    mask = bytes(token in KEPT_TOKENS for token in range(VOCABULARY))
    return {
        **floats(shapes),
        "d2t": ("I64", (len(offsets),), struct.pack(f"<{len(offsets)}q", *offsets)),
        "t2d": ("BOOL", (VOCABULARY,), mask),
    }


def target_tensors() -> Tensors:
    """A Llama."""
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    layer = {**_LAYER, "input_layernorm.weight": (HIDDEN,)}
    for index in range(NUM_TARGET_LAYERS):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return floats(shapes)


def medusa_tensors(num_heads: int = 2) -> Tensors:
    """Medusa heads in the authors' first layout."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(num_heads):
        shapes |= {f"{head}.0.linear.weight": (HIDDEN, HIDDEN), f"{head}.0.linear.bias": (HIDDEN,)}
        shapes |= {f"{head}.1.weight": (VOCABULARY, HIDDEN)}
    return floats(shapes)


def safetensors(tensors: Tensors) -> bytes:
    """A file of these tensors."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += values
    return with_header(header, data)


def with_header(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file with this header: JSON, or bytes as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


EAGLE = {"config.json": CONFIG, "model.safetensors": safetensors(eagle_tensors())}
EAGLE3 = {
    "config.json": {**CONFIG, "draft_vocab_size": len(KEPT_TOKENS)},
    "model.safetensors": safetensors(eagle3_tensors()),
}
MEDUSA = {
    "config.json": {"medusa_num_heads": 2},
    "model.safetensors": safetensors(medusa_tensors()),
}
TARGET = {
    "config.json": {**CONFIG, "num_hidden_layers": NUM_TARGET_LAYERS},
    "model.safetensors": safetensors(target_tensors()),
}


def write(directory: Path, files: dict[str, Any]) -> Path:
    """These files: bytes as they are, anything else as JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (directory / name).write_bytes(data)
    return directory


def sharded(**weight_map: Any) -> dict[str, Any]:
    """An EAGLE head in one shard, `one.safetensors`; `weight_map` replaces the index's."""
    return {
        "config.json": CONFIG,
        "one.safetensors": EAGLE["model.safetensors"],
        "model.safetensors.index.json": {"weight_map": weight_map or {"a": "one.safetensors"}},
    }


def refusal(call: Callable[[], Any]) -> str:
    """The one message of a refusal, which a terminal can show; it never takes long."""
    start = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        call()
    assert time.monotonic() - start < 20
    message = str(caught.value)
    assert message.replace("\n", "").isprintable() and len(message) < 2_000
    return message
