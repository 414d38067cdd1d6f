"""Does it still say the same: two systems compared, usually speculation on against off."""

from neuron_spec.equivalence.identity import Comparison, compare_greedy, compare_systems
from neuron_spec.equivalence.ties import Divergence

__all__ = ["Comparison", "Divergence", "compare_greedy", "compare_systems"]
