"""Would it work: every error that a compile or a run would raise later, found in a second."""

from neuron_spec.preflight.check import check
from neuron_spec.preflight.findings import Finding, raise_on_errors

__all__ = ["Finding", "check", "raise_on_errors"]
