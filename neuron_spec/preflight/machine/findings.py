"""Findings of the doctor, made short."""

from __future__ import annotations

from neuron_spec.preflight.findings import Finding

GIB = 1 << 30
DRIVER_SOURCE = "AWS Neuron documentation, neuron-runtime/nrt-troubleshoot"
SETUP = "AWS Neuron documentation, setup guide"


def error(code: str, message: str, remedy: str, source: str) -> Finding:
    """What stops a compile for Neuron on this machine."""
    return Finding(f"machine-{code}", "error", message, remedy, source, "neuron")


def warning(code: str, message: str, remedy: str, source: str) -> Finding:
    """What hinders running, or costs something."""
    return Finding(f"machine-{code}", "warning", message, remedy, source, "neuron")


def info(code: str, message: str, remedy: str, source: str) -> Finding:
    """What is worth knowing."""
    return Finding(f"machine-{code}", "info", message, remedy, source, "neuron")


def gib(num_bytes: float) -> str:
    """A size as a message shows it."""
    return f"{num_bytes / GIB:.1f} GiB"
