"""Hydra: the heads as they are, with the target's embedding and what a loader must know of it."""

from __future__ import annotations

from typing import Any

from neuron_spec.checkpoints.formats.eagle import EMBEDDING
from neuron_spec.checkpoints.formats.hydra import UNUSED, architecture, block
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.plans.base import Plan, refuse_quantized

# Of the target's config: the prefix layer of Hydra++ is one layer of the target's kind.
_TARGET_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
    "hidden_act",
    "attention_bias",
    "vocab_size",
)


def plan(draft: Identity, target: Identity) -> Plan:
    """See `neuron_spec.checkpoints.formats.hydra` for the layout."""
    result = Plan(config=_config(draft, target))
    first = draft.tensor(f"{block(architecture(draft.config.raw), 0, 0)}linear.weight")
    refuse_quantized(first)
    unused = [name for name in UNUSED if name in draft.names]
    result.carry_over(draft, without=unused)
    result.decisions += [f"dropped {name}: a copy of the embedding" for name in unused]
    if EMBEDDING not in draft.names:
        result.graft(EMBEDDING, target, first.dtype)
    return result


def _config(draft: Identity, target: Identity) -> dict[str, Any]:
    fields = {name: getattr(target.config, name) for name in _TARGET_FIELDS}
    model_type = target.config.model_type
    return {**draft.config.raw, **fields, "num_hidden_layers": 1, "model_type": model_type}
