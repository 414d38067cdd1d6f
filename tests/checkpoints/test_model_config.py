"""config.json in both spellings, and every wrong field named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from neuron_spec.checkpoints.model_config import ModelConfig, read_config
from neuron_spec.errors import CheckpointError


def read(tmp_path: Path, *without: str, **changes: Any) -> ModelConfig:
    config = {k: v for k, v in {**tiny.CONFIG, **changes}.items() if k not in without}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return read_config(tmp_path)


def test_the_fields_of_a_llama(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.model_type, config.hidden_act) == ("llama", "silu")
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (32, 64, 259)
    assert (config.num_hidden_layers, config.head_dim) == (2, 8)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert (config.rms_norm_eps, config.rope_theta, config.rope_scaling) == (1e-5, 1e4, None)
    assert (config.max_position_embeddings, config.sliding_window) == (256, None)
    assert (config.eos_token_ids, config.pad_token_id) == ((2,), 0)
    assert (config.tie_word_embeddings, config.attention_bias) == (False, False)
    assert config.raw["architectures"] == ["LlamaForCausalLM"]


def test_what_is_absent_or_null_has_hugging_faces_default(tmp_path: Path) -> None:
    optional = (
        "num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps", "tie_word_embeddings",
        "hidden_act", "max_position_embeddings", "eos_token_id", "pad_token_id",
    )  # fmt: skip
    absent = read(tmp_path, *optional)
    assert (absent.num_key_value_heads, absent.head_dim) == (4, 8)
    assert (absent.rope_theta, absent.rms_norm_eps) == (10000.0, 1e-6)
    assert (absent.max_position_embeddings, absent.eos_token_ids) == (2048, ())
    null = read(tmp_path, **dict.fromkeys(optional[:4]), max_position_embeddings=None)
    assert (null.head_dim, null.rms_norm_eps, null.max_position_embeddings) == (8, 1e-6, 2048)


def test_transformers_5_writes_rope_parameters(tmp_path: Path) -> None:
    plain = read(
        tmp_path, "rope_theta", rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    assert (plain.rope_theta, plain.rope_scaling) == (5e5, None)
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}
    scaled = read(tmp_path, "rope_theta", rope_parameters=linear)
    assert (scaled.rope_theta, scaled.rope_scaling) == (7.0, linear)


def test_transformers_4_writes_rope_scaling(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    assert read(tmp_path, rope_scaling=scaling).rope_scaling == scaling


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 128}, 128),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 128}, None),
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True}, 128),
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False}, None),
    ],
)
def test_a_sliding_window_counts_only_where_it_is_used(
    tmp_path: Path, changes: dict[str, Any], expected: int | None
) -> None:
    assert read(tmp_path, **changes).sliding_window == expected


def test_qwen2_has_biases_without_saying_so(tmp_path: Path) -> None:
    assert read(tmp_path, model_type="qwen2").attention_bias
    assert not read(tmp_path, model_type="qwen3").attention_bias
    assert read(tmp_path, attention_bias=True).attention_bias


def test_end_tokens_of_the_generation_config_win(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert read(tmp_path).eos_token_ids == (7, 8)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    assert read(tmp_path).eos_token_ids == (0,)
    (tmp_path / "generation_config.json").write_text("{}")
    assert read(tmp_path).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 0), ("hidden_size", "32"), ("hidden_size", None), ("vocab_size", True),
        ("num_attention_heads", -1), ("intermediate_size", 2.0), ("num_key_value_heads", "8"),
        ("head_dim", -8), ("max_position_embeddings", "many"), ("sliding_window", [1]),
        ("rms_norm_eps", "small"), ("rope_theta", [1]), ("rope_scaling", "linear"),
        ("rope_parameters", 3), ("model_type", None), ("pad_token_id", "x"),
        ("eos_token_id", "</s>"), ("eos_token_id", [1, None]), ("eos_token_id", {}),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, **{field: value})
    assert f"{field}: found {value!r}" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_all_wrong_fields_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, "hidden_size", "vocab_size", "model_type", rope_theta="x")
    for field in ("hidden_size", "vocab_size", "model_type", "rope_theta"):
        assert f"{field}: found" in str(caught.value)


def test_a_missing_directory_or_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        read_config(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_config(tmp_path)
