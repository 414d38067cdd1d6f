"""What weights are: reading, identifying, and preparing draft checkpoints."""

from neuron_spec.checkpoints.identify import Identity, identify
from neuron_spec.checkpoints.prepare import PreparedCheckpoint, prepare

__all__ = ["Identity", "PreparedCheckpoint", "identify", "prepare"]
