"""Does it still say the same: two systems compared, usually speculation on against off."""

from neuron_spec.equivalence.identity import (
    Comparison,
    Divergence,
    compare_greedy,
    compare_systems,
)

__all__ = ["Comparison", "Divergence", "compare_greedy", "compare_systems"]
