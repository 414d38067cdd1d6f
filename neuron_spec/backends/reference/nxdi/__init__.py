"""NxD Inference 0.9, emulated on the reference models, for debugging side by side.

The reference backend computes what the textbook says; NxDI departs from it in places. This room
computes what NxDI computes, defects included, step by step: `[reference] emulate = "nxdi"` puts it
behind the seam, and `generate`, `generate_medusa` and `generate_unfused` are its adapter's loops,
with the stop and EOS rules that otherwise belong to the engine.
"""

from neuron_spec.backends.reference.nxdi.chance import Chance
from neuron_spec.backends.reference.nxdi.eagle import FusedEagle
from neuron_spec.backends.reference.nxdi.eagle_tree import FusedEagleTree
from neuron_spec.backends.reference.nxdi.fused import FusedDraft
from neuron_spec.backends.reference.nxdi.loop import FusedRun, generate
from neuron_spec.backends.reference.nxdi.medusa import Medusa, MedusaRun, generate_medusa
from neuron_spec.backends.reference.nxdi.unfused import Unfused, UnfusedRun, generate_unfused

__all__ = [
    "Chance",
    "FusedDraft",
    "FusedEagle",
    "FusedEagleTree",
    "FusedRun",
    "Medusa",
    "MedusaRun",
    "Unfused",
    "UnfusedRun",
    "generate",
    "generate_medusa",
    "generate_unfused",
]
