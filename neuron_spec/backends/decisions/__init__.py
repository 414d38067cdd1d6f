"""Which tokens the host chooses from a target's logits; for every backend whose logits leave the
device."""

from neuron_spec.backends.decisions.judging import Decided, Decisions, dead_end, tree_of
from neuron_spec.backends.decisions.scored import KnownLogits, Scored

__all__ = ["Decided", "Decisions", "KnownLogits", "Scored", "dead_end", "tree_of"]
