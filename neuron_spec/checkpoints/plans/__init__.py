"""What preparation writes for each draft family: tensors with their origins, and config.json."""

from __future__ import annotations

from collections.abc import Callable

from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.plans import eagle, eagle3, hydra, medusa
from neuron_spec.checkpoints.plans.base import Plan

PLANS: dict[str, Callable[[Identity, Identity], Plan]] = {
    "eagle": eagle.plan,
    "eagle3": eagle3.plan,
    "hydra": hydra.plan,
    "medusa": medusa.plan,
}

__all__ = ["PLANS", "Plan"]
