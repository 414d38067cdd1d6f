"""Findings about a machine: what would stop a compile on it, or a start of what was compiled.

Pure functions over what `neuron_spec.platforms.machine` has read. An error means that compiling
for Neuron would fail here; what only hinders running is a warning.
"""

from __future__ import annotations

from neuron_spec.preflight.machine.examine import by_severity, examine
from neuron_spec.preflight.machine.for_build import check_spec

__all__ = ["by_severity", "check_spec", "examine"]
