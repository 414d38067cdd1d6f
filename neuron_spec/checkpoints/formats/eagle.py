"""EAGLE v1 draft heads (also EAGLE-2, which shares the weights), the authors' and speculators'.

The public layout (SafeAILab/EAGLE, `eagle/model/cnets1.py`) has no LM head, no final norm and no
input norm in layer 0; `fc` takes the embedding first, then the target's feature. NxDI
(`models/llama/modeling_llama.py`) wants the same keys plus a copy of the target's LM head. Early
releases of vllm-project/speculators renamed them (`convert/eagle/eagle_converter.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuron_spec.checkpoints.formats.base import (
    COPY_EMBEDDING,
    COPY_LM_HEAD,
    FLATTEN_CONFIG,
    ONE_LAYER,
    Shape,
    Shapes,
    config_writes,
    must_equal,
    parse_decoder,
)
from neuron_spec.checkpoints.formats.hf import layer_shapes
from neuron_spec.checkpoints.model_config import ModelConfig

FAMILY = "eagle"
parse_config = parse_decoder
DESCRIPTION = "an EAGLE v1 head (fc.weight of width 2 x hidden and layers.0.*)"

FC = "fc"
FC_WEIGHT, FC_BIAS = f"{FC}.weight", f"{FC}.bias"
EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
INPUT_NORM = "layers.0.input_layernorm.weight"
_SPECULATORS_NAMES = {"fusion_fc.": "fc.", "transformer.": "layers.0."}
# Norms of HASS heads: one on the embedding, one before the LM head.
_HASS_NORMS = ("embedding_layernorm.weight", "pre_lm_head_layernorm.weight")


def matches(raw_config: Mapping[str, Any], shapes: Shapes) -> bool:
    """An `fc` of width 2 x hidden beside one plain decoder layer is EAGLE v1."""
    canonical = {canonical_name(name): shape for name, shape in shapes.items()}
    fc = canonical.get(FC_WEIGHT, ())
    is_v1_width = len(fc) == 2 and fc[1] == 2 * fc[0]
    return is_v1_width and "layers.0.self_attn.q_proj.weight" in canonical


def canonical_name(name: str) -> str:
    """The key without a leading `model.`, which NxDI strips once and some exporters add, and
    under the authors' name where speculators has another."""
    name = name.removeprefix("model.")
    for theirs, ours in _SPECULATORS_NAMES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def required_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """What every EAGLE v1 checkpoint holds."""
    hidden = config.hidden_size
    shapes = {FC_WEIGHT: (hidden, 2 * hidden), **layer_shapes(config, "layers.0.")}
    del shapes[INPUT_NORM]
    return shapes


def optional_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """What a checkpoint may hold, depending on who trained or prepared it."""
    hidden, vocab = config.hidden_size, config.vocab_size
    return {
        FC_BIAS: (hidden,),
        INPUT_NORM: (hidden,),
        EMBEDDING: (vocab, hidden),
        LM_HEAD: (vocab, hidden),
        **dict.fromkeys(_HASS_NORMS, (hidden,)),
    }


def preparation(config: ModelConfig, found: Shapes) -> tuple[str, ...]:
    """Copies of the target's LM head and embedding, and the flags that the file decides."""
    copies = {LM_HEAD: COPY_LM_HEAD, EMBEDDING: COPY_EMBEDDING}
    steps = [step for name, step in copies.items() if name not in found]
    if "speculators_model_type" in config.raw:
        steps.append(FLATTEN_CONFIG)
        if config.num_hidden_layers != 1:
            steps.append(ONE_LAYER)
    return (*steps, *config_writes(config, fc_bias=FC_BIAS in found))


def refusals(
    config: ModelConfig, found: Shapes, target: ModelConfig | None
) -> list[tuple[str, str]]:
    """Another target's head, more layers than EAGLE v1 has, or norms that NxDI has not."""
    faults = must_equal(config, target)
    faults += [
        ("hass-norm", f"{name}: NxDI has no norm there and would leave it out")
        for name in _HASS_NORMS
        if name in found
    ]
    is_speculators = "speculators_model_type" in config.raw  # one layer, whatever it says
    if config.num_hidden_layers != 1 and not is_speculators:
        faults.append(
            ("layers", f"num_hidden_layers: found {config.num_hidden_layers}, expected 1")
        )
    return faults
