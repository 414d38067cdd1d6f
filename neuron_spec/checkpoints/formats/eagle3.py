"""EAGLE-3 draft heads: the authors', SpecForge's, and the speculators format.

Layer 0 reads the normed embedding beside the normed feature (width 2 x hidden); the first feature
is `fc` of three of the target's hidden states. The LM head is the head's own, often over a reduced
draft vocabulary: row i stands for the target's token i + d2t[i]. Sources: SafeAILab/EAGLE
`eagle/model/cnets.py`, vllm-project/speculators `models/eagle3`, NxDI
`models/llama/modeling_llama.py` (`is_eagle3`) and `models/model_base.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from neuron_spec.checkpoints.formats.eagle import EMBEDDING, FC_BIAS, FC_WEIGHT, LM_HEAD
from neuron_spec.checkpoints.formats.hf import layer_shapes
from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.errors import shown

FAMILY = "eagle3"
parse_config = parse_decoder
DESCRIPTION = "an EAGLE-3 head (hidden_norm in its layer, fc.weight of width 3 x hidden)"

NORM, D2T, T2D = "norm.weight", "d2t", "t2d"
HIDDEN_NORM = "layers.0.hidden_norm.weight"
NUM_TAPS = 3
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
FEATURE_LAYERS = "feature_layer_inputs"  # of prepared configs: LAYER_IDS has two meanings
MIN_TARGET_LAYERS = 7  # below that the three tapped layers are not three


def matches(raw_config: Mapping[str, Any], shapes: Shapes) -> bool:
    """A second norm inside the layer, for the feature, is what only EAGLE-3 has."""
    return any(canonical_name(name) == HIDDEN_NORM for name in shapes)


def canonical_name(name: str) -> str:
    """`midlayer.` (the authors', SpecForge) is `layers.0.`; NxDI renames it on one path only."""
    name = name.removeprefix("model.")
    if name.startswith("midlayer."):
        return "layers.0." + name.removeprefix("midlayer.")
    return name


def draft_vocab_size(config: ModelConfig) -> int:
    """Rows of the LM head as trained; the target's vocabulary where the config names none."""
    return int(config.raw.get("draft_vocab_size") or config.vocab_size)


def tapped_layers(num_target_layers: int) -> tuple[int, int, int]:
    """The target layers whose INPUTS make the feature, low to high.

    This is the authors' choice where a config names none. NxDI taps the outputs of layers 1, L//2-1
    and L-4 (`models/model_base.py`), which are the same states, and ignores every other choice.
    """
    return 2, num_target_layers // 2, num_target_layers - 3


def layer_ids(raw: Mapping[str, Any]) -> Any:
    """The target layers that a config names, as written; None if it names none."""
    nested = raw.get("eagle_config")
    source = nested if isinstance(nested, dict) else raw
    return source.get(LAYER_IDS)


def feature_layers(raw: Mapping[str, Any], num_target_layers: int) -> tuple[int, ...] | None:
    """The target layers whose INPUTS make the feature, low to high; None if the config's are none.

    Published ids count inputs (SafeAILab/EAGLE, vllm-project/vllm, speculators) or outputs
    (sgl-project/SpecForge); a list that begins with 1 counts outputs, as SGLang reads it. Prepared
    configs say `FEATURE_LAYERS` and leave no doubt.
    """
    ids = raw.get(FEATURE_LAYERS)
    if ids is None:
        ids = layer_ids(raw)
        if ids is None:
            return tapped_layers(num_target_layers)
        if isinstance(ids, list) and ids[:1] == [1]:
            ids = [layer + 1 if type(layer) is int else layer for layer in ids]
    is_list = isinstance(ids, list) and len(ids) == NUM_TAPS
    if not is_list or not all(type(layer) is int and layer >= 0 for layer in ids):
        return None
    return tuple(ids) if ids == sorted(set(ids)) else None


def required_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """What every EAGLE-3 checkpoint that NxDI can run holds."""
    hidden = config.hidden_size
    shapes = layer_shapes(config, "layers.0.")
    for part in "qkv":
        name = f"layers.0.self_attn.{part}_proj.weight"
        shapes[name] = (shapes[name][0], 2 * hidden)
    return {
        **shapes,
        FC_WEIGHT: (hidden, NUM_TAPS * hidden),
        HIDDEN_NORM: (hidden,),
        NORM: (hidden,),
    }


def optional_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """The LM head over its own vocabulary with its map, a bias of fc, a copy of the embedding."""
    hidden, vocab, draft_vocab = config.hidden_size, config.vocab_size, draft_vocab_size(config)
    return {
        FC_BIAS: (hidden,),
        EMBEDDING: (vocab, hidden),
        LM_HEAD: (draft_vocab, hidden),
        D2T: (draft_vocab,),
        T2D: (vocab,),
    }


def preparation(config: ModelConfig, found: Shapes) -> tuple[str, ...]:
    """Widen the LM head to the target's vocabulary, copy what is missing, flatten the config."""
    return tuple(_steps(config, found))


def _steps(config: ModelConfig, found: Shapes) -> Iterator[str]:
    draft_vocab, vocab = draft_vocab_size(config), config.vocab_size
    if LM_HEAD not in found:
        yield COPY_LM_HEAD
    elif draft_vocab != vocab:
        yield f"widen lm_head.weight from {draft_vocab} to {vocab} rows (NxDI has no d2t)"
    elif D2T in found or T2D in found:
        yield "drop d2t and t2d (NxDI has neither; the draft vocabulary is the target's)"
    if EMBEDDING not in found:
        yield COPY_EMBEDDING
    if "speculators_model_type" in config.raw:
        yield FLATTEN_CONFIG
    if config.num_hidden_layers != 1:
        yield ONE_LAYER
    yield from config_writes(config, fc_bias=FC_BIAS in found)


def refusals(
    config: ModelConfig, found: Shapes, target: ModelConfig | None
) -> list[tuple[str, str]]:
    """Variants that NxDI 0.9 would compute wrongly without a word."""
    return [
        *must_equal(config, target),
        *_norm_refusals(config.raw),
        *_vocabulary_refusals(config, found),
        *_tap_refusals(config.raw, target),
    ]


def _norm_refusals(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if raw.get("model_type") == "qwen3":
        yield "layer-type", "its layer is Qwen3's, with norms on q and k: NxDI's has none"
    is_speculators = "speculators_model_type" in raw
    if is_speculators and raw.get("norm_before_residual") is None:
        yield (
            "norm-before-residual",
            "norm_before_residual is not in config.json, and readers disagree on its default "
            "(vLLM true, speculators false); write it as the head was trained",
        )
    # SpecForge's norm_output means the norm before the LM head, which every EAGLE-3 head has.
    names = ("norm_before_residual", "norm_before_fc", "fc_norm")
    for name in (*names, "norm_output") if is_speculators else names:
        if raw.get(name):
            yield name.replace("_", "-"), f"{name} is true: NxDI has no such norm"


def _vocabulary_refusals(config: ModelConfig, found: Shapes) -> Iterator[tuple[str, str]]:
    draft_vocab, vocab = draft_vocab_size(config), config.vocab_size
    if draft_vocab > vocab:
        yield "draft-vocab-size", f"draft_vocab_size {draft_vocab} exceeds vocab_size {vocab}"
    if draft_vocab != vocab:
        yield from (
            ("vocabulary-map", f"{name} is missing, but draft_vocab_size {draft_vocab} is not "
             f"vocab_size {vocab}")
            for name in (LM_HEAD, D2T)
            if name not in found
        )  # fmt: skip
    head = config.raw.get("target_hidden_size")
    if head not in (None, config.hidden_size):
        yield "target-hidden-size", f"target_hidden_size {head} is not hidden_size: NxDI needs both"


def _tap_refusals(raw: Mapping[str, Any], target: ModelConfig | None) -> Iterator[tuple[str, str]]:
    if target is None:
        return
    num_layers, ids = target.num_hidden_layers, layer_ids(raw)
    if ids is None:
        if num_layers < MIN_TARGET_LAYERS:
            yield (
                "target-layers",
                f"the target has {num_layers} layers, needed: {MIN_TARGET_LAYERS}",
            )
        return
    layers = feature_layers(raw, num_layers)
    if layers is None or layers[-1] >= num_layers:
        yield (
            "tapped-layers",
            f"{LAYER_IDS} {shown(ids)}: expected {NUM_TAPS} rising layers of the target's "
            f"{num_layers}, as {list(tapped_layers(num_layers))} (counted by input)",
        )
