"""How NxDI divides heads among cores (`modules/attention/gqa.py`, `parallel_layers/pad.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_spec.checkpoints.model_config import ModelConfig


@dataclass(frozen=True)
class Heads:
    """Attention heads on all cores together.

    Attributes:
        is_converted: whether every query head got a KV head of its own for want of a better split.
    """

    query: int
    key_value: int
    is_converted: bool


def shard_heads(config: ModelConfig, degree: int) -> Heads:
    """Heads after padding and replication: KV heads stay where they divide among the cores, are
    copied to one a core where the degree is a multiple of them, and to one a query head else."""
    query, key_value = padded(config.num_attention_heads, degree), config.num_key_value_heads
    if config.num_attention_heads == key_value:
        return Heads(query, query, is_converted=False)
    if key_value % degree == 0:
        return Heads(query, key_value, is_converted=False)
    if degree % key_value == 0:
        return Heads(query, degree, is_converted=False)
    return Heads(query, query, is_converted=True)


def padded(count: int, degree: int) -> int:
    """The next multiple of the degree."""
    return -(-count // degree) * degree


def divides(degree: int, count: int) -> bool:
    """Whether so many rows, columns or positions can be split evenly."""
    return count % degree == 0
