"""`config.json` of a model, read without running any code of the checkpoint.

Both spellings of transformers 4 (`torch_dtype`, `rope_theta`) and 5 (`dtype`, `rope_parameters`)
are understood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.tensors import read_json
from neuron_spec.errors import CheckpointError

DEFAULT_ROPE_THETA = 10000.0  # what Hugging Face's Llama uses where the file is silent


@dataclass(frozen=True)
class ModelConfig:
    """The fields that decide shapes and arithmetic of a decoder-only transformer."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    hidden_act: str
    attention_bias: bool
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    sliding_window: int | None
    raw: Mapping[str, Any]
    """The whole of config.json."""


def read_config(directory: Path) -> ModelConfig:
    """Parse `config.json` (and the end-of-sequence ids of `generation_config.json`).

    Raises:
        CheckpointError: missing file, missing or misshapen fields (all named at once).
    """
    path = directory / "config.json"
    if not directory.is_dir():
        raise CheckpointError("no such directory", where=directory)
    raw = _flattened(read_json(path), path)
    return _parse(raw, path, eos_token_ids=_eos_token_ids(raw, directory))


_REQUIRED_INTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
_OPTIONAL_INTS = ("num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window")
_OPTIONAL_NUMBERS = ("rms_norm_eps", "rope_theta")
_OPTIONAL_TABLES = ("rope_scaling", "rope_parameters")


def _parse(raw: dict[str, Any], path: Path, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    if faults := list(_faults(raw)):
        raise CheckpointError("\n  ".join(["not a decoder's config", *faults]), where=path)
    heads = raw["num_attention_heads"]
    rope = raw.get("rope_parameters") or {}
    return ModelConfig(
        **{name: raw[name] for name in _REQUIRED_INTS},
        model_type=raw["model_type"],
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        rms_norm_eps=float(raw.get("rms_norm_eps") or 1e-6),
        rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta") or DEFAULT_ROPE_THETA),
        rope_scaling=raw.get("rope_scaling") or _scaling(rope),
        max_position_embeddings=raw.get("max_position_embeddings") or 2048,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        hidden_act=str(raw.get("hidden_act", "silu")),
        attention_bias=bool(raw.get("attention_bias", raw["model_type"] == "qwen2")),
        eos_token_ids=eos_token_ids,
        pad_token_id=raw.get("pad_token_id"),
        sliding_window=_sliding_window(raw),
        raw=raw,
    )


# The nested part of a speculators config: a difference against its model type's defaults.
_NESTED = "transformer_layer_config"
_NESTED_FIELDS = (
    *_REQUIRED_INTS,
    *_OPTIONAL_INTS,
    *_OPTIONAL_NUMBERS,
    *_OPTIONAL_TABLES,
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "pad_token_id",
)


def _flattened(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The speculators form as one flat table (vllm-project/speculators, `config.py`).

    Fields that the nested table leaves out are transformers' defaults for its model type. All
    other fields stay, `speculators_model_type` too: it tells which form the file had.
    """
    nested = raw.get(_NESTED)
    if not isinstance(nested, dict):
        return raw
    model_type = nested.get("model_type")
    from transformers import CONFIG_MAPPING

    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise CheckpointError(
            f"unknown model type {model_type!r}", where=f"{path}: {_NESTED}.model_type"
        )
    complete = CONFIG_MAPPING[model_type](**nested).to_dict()
    fields = {name: complete[name] for name in _NESTED_FIELDS if complete.get(name) is not None}
    outer = {name: value for name, value in raw.items() if name != _NESTED}
    return {**outer, **fields, "model_type": model_type}


def _faults(raw: dict[str, Any]) -> Iterator[str]:
    """One sentence for every field that is missing or of the wrong kind."""
    for name in (*_REQUIRED_INTS, *_OPTIONAL_INTS):
        value, is_optional = raw.get(name), name in _OPTIONAL_INTS
        is_positive = type(value) is int and value > 0
        if not is_positive and not (value is None and is_optional):
            yield f"{name}: found {value!r}, expected a positive integer"
    for name in _OPTIONAL_NUMBERS:
        if not (raw.get(name) is None or type(raw[name]) in (int, float)):
            yield f"{name}: found {raw[name]!r}, expected a number"
    for name in _OPTIONAL_TABLES:
        if not isinstance(raw.get(name) or {}, dict):
            yield f"{name}: found {raw[name]!r}, expected an object"
    if not isinstance(raw.get("model_type"), str):
        yield f"model_type: found {raw.get('model_type')!r}, expected a name as 'llama'"
    if not (raw.get("pad_token_id") is None or type(raw["pad_token_id"]) is int):
        yield f"pad_token_id: found {raw['pad_token_id']!r}, expected a token id"


def _scaling(rope: dict[str, Any]) -> dict[str, Any] | None:
    return None if rope.get("rope_type", "default") == "default" else rope


def _sliding_window(raw: dict[str, Any]) -> int | None:
    is_used = raw.get("use_sliding_window", raw.get("model_type") == "mistral")
    return raw.get("sliding_window") if is_used else None


def _eos_token_ids(raw: dict[str, Any], directory: Path) -> tuple[int, ...]:
    """generation_config.json wins: instruct models list their turn end only there."""
    generation = directory / "generation_config.json"
    values = read_json(generation).get("eos_token_id") if generation.is_file() else None
    values = raw.get("eos_token_id") if values is None else values
    if values is None:
        return ()
    ids = tuple(values) if isinstance(values, list) else (values,)
    if not all(type(token) is int for token in ids):
        raise CheckpointError(
            f"eos_token_id: found {values!r}, expected token ids", where=directory
        )
    return ids
