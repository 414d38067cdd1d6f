"""Checkpoints of any size that take no disk: a config, a whole safetensors header, and a hole."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from neuron_builds import CONFIGS

from neuron_spec.checkpoints.formats import eagle, eagle3, hf
from neuron_spec.checkpoints.model_config import ModelConfig, parse_config

Shapes = dict[str, tuple[int, ...]]
_ITEM_BYTES = {"BF16": 2, "I64": 8, "BOOL": 1}
_DTYPES = {"d2t": "I64", "t2d": "BOOL"}


def write(directory: Path, raw: dict[str, Any], shapes: Shapes, **values: bytes) -> Path:
    """Tensors of these shapes, all zero but those given by value."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    header: dict[str, Any] = {}
    position = 0
    for name, shape in shapes.items():
        dtype = _DTYPES.get(name, "BF16")
        end = position + math.prod(shape) * _ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + position)
        for name, value in values.items():
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(value)
    return directory


def raw_config(name: str, **changes: Any) -> dict[str, Any]:
    """config.json of a published model, in bfloat16."""
    return {**CONFIGS[name], "torch_dtype": "bfloat16", "eos_token_id": 2, **changes}


def language_model(directory: Path, raw: dict[str, Any]) -> Path:
    """A whole model."""
    return write(directory, raw, dict(hf.required_shapes(_parsed(raw), {})))


def eagle_head(directory: Path, target: dict[str, Any], **changes: Any) -> Path:
    """An EAGLE v1 head as its authors publish it: neither embedding nor LM head."""
    raw = _head(target, **changes)
    return write(directory, raw, dict(eagle.required_shapes(_parsed(raw), {})))


def eagle3_head(directory: Path, target: dict[str, Any], rows: int, **changes: Any) -> Path:
    """An EAGLE-3 head over the target's first tokens, with their map."""
    raw = {**_head(target, **changes), "draft_vocab_size": rows}
    vocab, hidden = raw["vocab_size"], raw["hidden_size"]
    shapes = dict(eagle3.required_shapes(_parsed(raw), {}))
    shapes |= {"lm_head.weight": (rows, hidden), "d2t": (rows,), "t2d": (vocab,)}
    return write(directory, raw, shapes, t2d=b"\1" * rows)


def medusa_heads(directory: Path, target: dict[str, Any], num_heads: int = 4) -> Path:
    """Medusa heads as their authors publish them, but for the pickle."""
    hidden, vocab = target["hidden_size"], target["vocab_size"]
    shapes: Shapes = {}
    for head in range(num_heads):
        shapes[f"{head}.0.linear.weight"] = (hidden, hidden)
        shapes[f"{head}.0.linear.bias"] = (hidden,)
        shapes[f"{head}.1.weight"] = (vocab, hidden)
    raw = {"medusa_num_heads": num_heads, "medusa_num_layers": 1, "model_type": "medusa"}
    return write(directory, raw, shapes)


def _head(target: dict[str, Any], **changes: Any) -> dict[str, Any]:
    layer = {"num_hidden_layers": 1, "tie_word_embeddings": False, "model_type": "llama"}
    return {**target, **layer, **changes}


def _parsed(raw: dict[str, Any]) -> ModelConfig:
    return parse_config(raw, Path("/nowhere"))
