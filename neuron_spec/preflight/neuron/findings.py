"""Findings about builds for Neuron, made short: a table of constraints reads better so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild

Constraint = Callable[[NeuronBuild], Iterator[Finding]]


def error(code: str, message: str, remedy: str, source: str) -> Finding:
    """What stops a build for Neuron."""
    return Finding(f"neuron-{code}", "error", message, remedy, source, "neuron")


def warning(code: str, message: str, remedy: str, source: str) -> Finding:
    """What compiles and works, but not as one would expect."""
    return Finding(f"neuron-{code}", "warning", message, remedy, source, "neuron")


def info(code: str, message: str, remedy: str, source: str) -> Finding:
    """What is worth knowing."""
    return Finding(f"neuron-{code}", "info", message, remedy, source, "neuron")


def listed(values: object) -> str:
    """Numbers or names, as a message shows them."""
    return ", ".join(map(str, values)) if isinstance(values, (tuple, list)) else str(values)
