"""The checkpoint families, one file each with the same shape: how to recognise it, which tensors of
which shape it holds, what preparation has to do, what must be refused. Data, no torch.
"""

from __future__ import annotations

from neuron_spec.checkpoints.formats import eagle, eagle3, hf, hydra, medusa
from neuron_spec.checkpoints.formats.base import Format

# In the order of recognition: the more special layout first.
FORMATS: tuple[Format, ...] = (hydra, medusa, eagle3, eagle, hf)

__all__ = ["FORMATS", "Format"]
