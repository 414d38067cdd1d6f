"""Keys of an EAGLE v1 draft head (also EAGLE-2, which shares the weights).

The public layout (SafeAILab/EAGLE, `eagle/model/cnets1.py`) has no LM head, no final norm and no
input norm in layer 0; `fc` takes the embedding first, then the target's feature. NxDI
(`models/llama/modeling_llama.py`) wants the same keys plus a copy of the target's LM head.
"""

from __future__ import annotations

from collections.abc import Collection

from neuron_spec.checkpoints.formats.hf import Shape, layer_shapes
from neuron_spec.checkpoints.model_config import ModelConfig

FC_WEIGHT, FC_BIAS = "fc.weight", "fc.bias"
EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
INPUT_NORM = "layers.0.input_layernorm.weight"

# Stored by some exporters, rebuilt by every loader: never copied.
DERIVED_SUFFIXES = (".rotary_emb.inv_freq",)


def required_shapes(config: ModelConfig) -> dict[str, Shape]:
    """What every EAGLE v1 checkpoint holds."""
    hidden = config.hidden_size
    shapes = {FC_WEIGHT: (hidden, 2 * hidden), **layer_shapes(config, "layers.0.")}
    del shapes[INPUT_NORM]
    return shapes


def optional_shapes(config: ModelConfig) -> dict[str, Shape]:
    """What a checkpoint may hold, depending on who trained or prepared it."""
    hidden, vocab = config.hidden_size, config.vocab_size
    return {
        FC_BIAS: (hidden,),
        INPUT_NORM: (hidden,),
        EMBEDDING: (vocab, hidden),
        LM_HEAD: (vocab, hidden),
    }


def canonical_name(name: str) -> str:
    """The key without a leading `model.`, which NxDI strips once and some exporters add."""
    return name.removeprefix("model.")


def looks_like(names: Collection[str], fc_shape: Shape | None) -> bool:
    """An `fc` of width 2 x hidden beside one plain decoder layer is EAGLE v1."""
    canonical = {canonical_name(name) for name in names}
    is_v1_width = fc_shape is not None and len(fc_shape) == 2 and fc_shape[1] == 2 * fc_shape[0]
    return is_v1_width and "layers.0.self_attn.q_proj.weight" in canonical
