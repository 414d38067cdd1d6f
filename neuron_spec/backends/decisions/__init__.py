"""Which tokens the host chooses from a target's logits; for every backend whose logits leave the
device."""

from neuron_spec.backends.decisions.judging import Decided, Decisions, dead_end, tree_of

__all__ = ["Decided", "Decisions", "dead_end", "tree_of"]
