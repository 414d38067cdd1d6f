"""Lengths and buckets of the graphs (NxDI `models/config.py`, `modules/autobucketing.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuron_spec.backends.neuron.settings import Setting, Settings
from neuron_spec.spec.schema import BuildSpec

TILE = 128  # the KV cache of fused graphs is tiled by so many positions, and only by whole tiles

_SEQ_LEN = (
    "shape.max_total_tokens and the positions of one step; above 128 a multiple of 128, which NxDI "
    "needs to tile the KV cache of fused graphs (models/config.py)"
)
_CONTEXT = "shape.max_prompt_tokens, as a multiple of 128 where the cache is so long"


@dataclass(frozen=True)
class Lengths:
    """In tokens.

    Attributes:
        total: positions of the KV cache.
        context: the longest prompt graph.
        context_buckets: all prompt graphs, shortest first; empty: one of `context`.
        token_buckets: all decoding graphs, shortest first; empty: one of `total`.
    """

    total: int
    context: int
    context_buckets: tuple[int, ...] = ()
    token_buckets: tuple[int, ...] = ()

    @property
    def settings(self) -> Settings:
        """As keywords."""
        settings = {
            "seq_len": Setting(self.total, _SEQ_LEN),
            "max_context_length": Setting(self.context, _CONTEXT),
            "enable_bucketing": Setting(bool(self.token_buckets)),
        }
        if self.token_buckets:
            settings["context_encoding_buckets"] = Setting(list(self.context_buckets))
            settings["token_generation_buckets"] = Setting(list(self.token_buckets))
        return settings


def lengths_of(spec: BuildSpec, step: int) -> Lengths:
    """Lengths for steps of so many positions; the user's own buckets decide where they are given.

    Args:
        step: positions the target scores in one step; 1 without a draft.
    """
    neuron = spec.neuron
    assert neuron is not None
    given_context, given_total = neuron.context_encoding_buckets, neuron.token_generation_buckets
    total = given_total[-1] if given_total else _tiled(needed_positions(spec, step))
    context = min(total, -(-spec.shape.max_prompt_tokens // TILE) * TILE)
    if not neuron.bucketing:
        return Lengths(total, context)
    context = given_context[-1] if given_context else context
    context_buckets = given_context or tuple(b for b in _buckets(context) if b != step)
    return Lengths(total, context, context_buckets, given_total or _buckets(total))


def needed_positions(spec: BuildSpec, step: int) -> int:
    """Room for a whole step behind the last token, so that a request always reaches its limit."""
    return spec.shape.max_total_tokens + (step if spec.speculates else 0)


def length_faults(spec: BuildSpec, lengths: Lengths, step: int) -> Iterator[str]:
    """Buckets that are too short, too long, or taken for a speculation step."""
    if lengths.context < spec.shape.max_prompt_tokens:
        yield (
            f"neuron.context_encoding_buckets: the longest is {lengths.context}, shorter than "
            f"shape.max_prompt_tokens {spec.shape.max_prompt_tokens}"
        )
    if lengths.total < needed_positions(spec, step):
        yield (
            f"neuron.token_generation_buckets: the longest is {lengths.total}; shape.max_total_"
            f"tokens and a step of {step} positions need {needed_positions(spec, step)}"
        )
    if lengths.context > lengths.total:
        yield (
            f"neuron.context_encoding_buckets: {lengths.context} is longer than the longest of "
            f"neuron.token_generation_buckets, {lengths.total}"
        )
    if spec.speculates and step in (lengths.context_buckets or (lengths.context,)):
        yield (
            f"a prompt graph of {step} positions: NxDI takes it for a step of as many positions "
            "(models/model_base.py); choose another shape.max_prompt_tokens or other buckets"
        )


def _tiled(length: int) -> int:
    return length if length <= TILE else -(-length // TILE) * TILE


def _buckets(length: int) -> tuple[int, ...]:
    """Powers of two from 128, then the length; one that is nearly the length would be no gain."""
    powers = (TILE << shift for shift in range(length.bit_length()))
    return (*(power for power in powers if 4 * power <= 3 * length), length)
