"""Keys of a causal language model as Hugging Face stores it (Llama and its kin)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuron_spec.checkpoints.formats import mtp
from neuron_spec.checkpoints.formats.base import Shape, Shapes, parse_decoder
from neuron_spec.checkpoints.model_config import ModelConfig

FAMILY = "causal-lm"
parse_config = parse_decoder
DESCRIPTION = "a causal language model (model.embed_tokens.weight)"

# What the reference backend computes; anything else is refused by name, never approximated.
SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
SUPPORTED_ACTIVATIONS = ("silu",)
SUPPORTED_ROPE_SCALINGS = ("default", "linear", "llama3")


def layer_shapes(config: ModelConfig, prefix: str) -> dict[str, Shape]:
    """Keys and shapes of one decoder layer; `prefix` ends with a dot."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query = config.num_attention_heads * config.head_dim
    key_value = config.num_key_value_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.attention_bias:
        shapes |= {
            "self_attn.q_proj.bias": (query,),
            "self_attn.k_proj.bias": (key_value,),
            "self_attn.v_proj.bias": (key_value,),
        }
        if config.model_type != "qwen2":
            shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.model_type == "qwen3":
        shapes |= {
            "self_attn.q_norm.weight": (config.head_dim,),
            "self_attn.k_norm.weight": (config.head_dim,),
        }
    return {prefix + name: shape for name, shape in shapes.items()}


def matches(raw_config: Mapping[str, Any], shapes: Shapes) -> bool:
    """A whole model has its embedding under `model.`."""
    return "model.embed_tokens.weight" in shapes


def canonical_name(name: str) -> str:
    """Hugging Face's names are used as they are."""
    return name


def required_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """Keys and shapes of the whole model; a tied LM head is not a key of its own."""
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    for layer in range(config.num_hidden_layers):
        shapes |= layer_shapes(config, f"model.layers.{layer}.")
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def optional_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """Some exporters store the tied LM head as well; MTP layers are of use to one draft method."""
    shapes: dict[str, Shape] = {}
    if config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for prefix in mtp.prefixes(config):
        shapes |= mtp_shapes(config, prefix) | mtp.copy_shapes(config, prefix)
    return shapes


def mtp_shapes(config: ModelConfig, prefix: str) -> dict[str, Shape]:
    """What an MTP layer must hold to be of use: a decoder layer of the target's kind and more."""
    return layer_shapes(config, prefix) | mtp.own_shapes(config, prefix)


def preparation(config: ModelConfig, found: Shapes) -> tuple[str, ...]:
    """Nothing: NxDI loads it as it is."""
    return ()


def refusals(
    config: ModelConfig, found: Shapes, target: ModelConfig | None
) -> list[tuple[str, str]]:
    """Nothing by itself."""
    return []
