"""Random models of transformers' families, small and with everything that tells them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 8}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "llama-rope-llama3": ("Llama", {"rope_scaling": LLAMA3_ROPE}),
    "llama-rope-linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
}


def build(family: str, directory: Path, **sizes: int) -> Any:
    """A random transformers model of that family, saved to `directory`."""
    name, changes = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes, **sizes})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():  # biases start at zero, norms at one: make them matter
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return model
