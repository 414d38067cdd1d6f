"""Counting: acceptance as pure numbers."""

from neuron_spec.metrics.acceptance import AcceptanceCounts

__all__ = ["AcceptanceCounts"]
