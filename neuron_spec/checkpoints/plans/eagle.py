"""EAGLE v1: the head as it is, with the target's LM head and embedding."""

from __future__ import annotations

from neuron_spec.checkpoints.formats.eagle import EMBEDDING, LM_HEAD
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.plans.base import Plan, config_decisions, draft_config, draft_dtype


def plan(draft: Identity, target: Identity) -> Plan:
    """See `neuron_spec.checkpoints.formats.eagle` for the layout."""
    result = Plan(config={**draft_config(draft, target), "num_hidden_layers": 1})
    result.carry_over(draft)
    for name in (LM_HEAD, EMBEDDING):
        if name not in draft.names:
            result.graft(name, target, draft_dtype(draft))
    result.complete_biases(draft)
    result.decisions += config_decisions(draft)
    return result
