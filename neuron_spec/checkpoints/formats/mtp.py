"""Keys of multi-token-prediction layers inside a target's checkpoint, as DeepSeek-V3 stores them.

They follow the last decoder layer under its naming, `model.layers.{N}.*`, and are counted by
`num_nextn_predict_layers`. Sources: deepseek-ai/DeepSeek-V3 README_WEIGHTS.md; vLLM
`vllm/model_executor/models/deepseek_mtp.py`.
"""

from __future__ import annotations

from neuron_spec.checkpoints.formats.base import Shape
from neuron_spec.checkpoints.model_config import ModelConfig

FIELD = "num_nextn_predict_layers"
EMBEDDING_NORM = "enorm.weight"
HIDDEN_NORM = "hnorm.weight"
PROJECTION = "eh_proj.weight"
OUTPUT_NORM = "shared_head.norm.weight"
LM_HEAD = "shared_head.head.weight"
EMBEDDING = "embed_tokens.weight"
_MAX_LAYERS = 16  # published checkpoints have 1 to 3


def num_layers(config: ModelConfig) -> int:
    """MTP layers by config.json; 0 where it does not say, or says no sensible number."""
    found = config.raw.get(FIELD)
    return found if type(found) is int and 0 < found <= _MAX_LAYERS else 0


def prefixes(config: ModelConfig) -> list[str]:
    """What the keys of each MTP layer start with."""
    first = config.num_hidden_layers
    return [f"model.layers.{index}." for index in range(first, first + num_layers(config))]


def own_shapes(config: ModelConfig, prefix: str) -> dict[str, Shape]:
    """What an MTP layer holds beside a decoder layer."""
    hidden = config.hidden_size
    return {
        prefix + EMBEDDING_NORM: (hidden,),
        prefix + HIDDEN_NORM: (hidden,),
        prefix + PROJECTION: (hidden, 2 * hidden),
        prefix + OUTPUT_NORM: (hidden,),
    }


def copy_shapes(config: ModelConfig, prefix: str) -> dict[str, Shape]:
    """Copies of the target's embedding and LM head that it may hold."""
    rows = (config.vocab_size, config.hidden_size)
    return {prefix + EMBEDDING: rows, prefix + LM_HEAD: rows}
