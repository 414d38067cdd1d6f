"""`config.json` of a model, read without running any code of the checkpoint.

Both spellings of transformers 4 (`torch_dtype`, `rope_theta`) and 5 (`dtype`, `rope_parameters`)
are understood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.json_files import read_json
from neuron_spec.errors import CheckpointError, shown

# Llama-like model types whose LM head transformers ties where the file is silent; llama, mistral,
# qwen2 and qwen3 are not among them.
TIED_BY_DEFAULT = ("cohere", "cohere2", "ernie4_5", "gemma", "gemma2", "gemma3_text", "smollm3")
DEFAULT_ROPE_THETA = 10000.0  # what Hugging Face's Llama uses where the file is silent


@dataclass(frozen=True)
class ModelConfig:
    """The fields that decide shapes and arithmetic of a decoder-only transformer.

    Heads without a transformer of their own (Medusa, Hydra) have 0 attention heads and 0 layers;
    their hidden size and vocabulary are those of their tensors (see `heads_config`).
    """

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

    @property
    def rope_kind(self) -> str:
        """How rotary positions are scaled; `default` where they are not."""
        scaling = self.rope_scaling or {}
        return str(scaling.get("rope_type") or scaling.get("type") or "default")


def read_config(directory: Path) -> ModelConfig:
    """Parse `config.json` (and the end-of-sequence ids of `generation_config.json`).

    Raises:
        CheckpointError: missing file, missing or misshapen fields (all named at once).
    """
    return parse_config(read_raw_config(directory), directory)


def read_raw_config(directory: Path) -> dict[str, Any]:
    """`config.json` as a table; the nested speculators form flattened.

    Raises:
        CheckpointError: no directory, no file, not a JSON object, an unknown nested model type.
    """
    if not directory.is_dir():
        raise CheckpointError("no such directory", where=directory)
    path = directory / "config.json"
    return _flattened(read_json(path), path)


def parse_config(raw: dict[str, Any], directory: Path) -> ModelConfig:
    """A decoder's config out of a raw one; see `read_config`."""
    path = directory / "config.json"
    return _parse(raw, path, eos_token_ids=_eos_token_ids(raw, directory))


def heads_config(
    raw: dict[str, Any], model_type: str, *, hidden_size: int, vocab_size: int
) -> ModelConfig:
    """The config of heads that are no transformer: sizes come from the tensors, since published
    configs do not hold them; 0 stands for what such heads do not have."""
    return ModelConfig(
        model_type=model_type,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        intermediate_size=0,
        num_hidden_layers=0,
        num_attention_heads=0,
        num_key_value_heads=0,
        head_dim=0,
        rms_norm_eps=0.0,
        rope_theta=DEFAULT_ROPE_THETA,
        rope_scaling=None,
        max_position_embeddings=0,
        tie_word_embeddings=False,
        hidden_act="silu",
        attention_bias=False,
        eos_token_ids=(),
        pad_token_id=None,
        sliding_window=None,
        raw=raw,
    )


_REQUIRED_INTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
_OPTIONAL_INTS = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
    "draft_vocab_size",
)
# Far above any real model: what is built a layer, or a row, at a time stays small.
_MAX_INT, _MAX_LAYERS = 1 << 40, 1024
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
        tie_word_embeddings=_is_tied(raw),
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
    known = {name: nested[name] for name in _NESTED_FIELDS if nested.get(name) is not None}
    # Checked before transformers sees them, which makes lists of as many layers as it is told.
    if faults := list(_wrong_fields({**known, "model_type": model_type})):
        raise CheckpointError(
            "\n  ".join(["not a decoder's config", *faults]), where=f"{path}: {_NESTED}"
        )
    complete = _with_defaults(model_type, known, path)
    fields = {name: complete[name] for name in _NESTED_FIELDS if complete.get(name) is not None}
    if known.get("rope_parameters") and "rope_theta" not in known:
        fields.pop("rope_theta", None)  # transformers 4 knows one form only and fills in the other
    if nested.get("tie_word_embeddings"):
        fields["tie_word_embeddings"] = nested["tie_word_embeddings"]
    outer = {name: value for name, value in raw.items() if name != _NESTED}
    return {**outer, **fields, "model_type": model_type}


def _with_defaults(model_type: Any, fields: dict[str, Any], path: Path) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise CheckpointError(
            f"unknown model type {shown(model_type)}", where=f"{path}: {_NESTED}.model_type"
        )
    try:
        return dict(CONFIG_MAPPING[model_type](**fields).to_dict())
    except Exception as error:  # each model type checks in its own way
        reason = shown(next(iter(str(error).splitlines()), ""))
        raise CheckpointError(
            f"transformers takes it for no {model_type} config ({type(error).__name__}: {reason})",
            where=f"{path}: {_NESTED}",
        ) from error


def _faults(raw: dict[str, Any]) -> Iterator[str]:
    """One sentence for every field that is missing or of the wrong kind."""
    for name in (*_REQUIRED_INTS, "model_type"):
        if raw.get(name) is None:
            expected = "a name as 'llama'" if name == "model_type" else "a positive integer"
            yield f"{name}: found None, expected {expected}"
    yield from _wrong_fields(raw)


def _wrong_fields(raw: dict[str, Any]) -> Iterator[str]:
    """One sentence for every field that is there and of the wrong kind."""
    kinds = {
        **dict.fromkeys((*_REQUIRED_INTS, *_OPTIONAL_INTS), (_is_size, "a positive integer")),
        "num_hidden_layers": (_is_depth, f"a positive integer up to {_MAX_LAYERS}"),
        **dict.fromkeys(_OPTIONAL_NUMBERS, (_is_number, "a number from 0")),
        **dict.fromkeys(_OPTIONAL_TABLES, (_is_table, "an object")),
        "model_type": (_is_name, "a name as 'llama'"),
        "hidden_act": (_is_name, "a name as 'silu'"),
        "tie_word_embeddings": (_is_flag, "true or false"),
        "attention_bias": (_is_flag, "true or false"),
        "pad_token_id": (_is_token_id, "a token id"),
    }
    for name, (is_right, expected) in kinds.items():
        if raw.get(name) is not None and not is_right(raw[name]):
            yield f"{name}: found {shown(raw[name])}, expected {expected}"
    rope = raw.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    if theta is not None and not _is_number(theta):
        yield f"rope_parameters.rope_theta: found {shown(theta)}, expected a number from 0"


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MAX_INT


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_depth(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MAX_LAYERS


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def _is_table(value: Any) -> bool:
    return isinstance(value or {}, dict)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= 100


def _is_token_id(value: Any) -> bool:
    return type(value) is int and abs(value) <= _MAX_INT


def _is_tied(raw: dict[str, Any]) -> bool:
    said = raw.get("tie_word_embeddings")
    return raw.get("model_type") in TIED_BY_DEFAULT if said is None else bool(said)


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
    if not all(_is_token_id(token) for token in ids):
        raise CheckpointError(
            f"eos_token_id: found {shown(values)}, expected token ids", where=directory
        )
    return ids
