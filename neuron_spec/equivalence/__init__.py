"""Does it still say the same: speculation on against off."""

from neuron_spec.equivalence.identity import Comparison, Divergence, compare_greedy

__all__ = ["Comparison", "Divergence", "compare_greedy"]
