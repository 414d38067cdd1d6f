"""Lengths and buckets as keywords of NxDI, and what is wrong with those that were given."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.backends.neuron.settings import Setting, Settings
from neuron_spec.spec.graphs import Lengths, needed_positions
from neuron_spec.spec.schema import BuildSpec

_SEQ_LEN = (
    "shape.max_total_tokens and the positions of one step; above 128 a multiple of 128, which NxDI "
    "needs to tile the KV cache of fused graphs (models/config.py)"
)
_CONTEXT = "shape.max_prompt_tokens, as a multiple of 128 where the cache is so long"


def length_settings(lengths: Lengths) -> Settings:
    """As keywords of NeuronConfig."""
    settings = {
        "seq_len": Setting(lengths.total, _SEQ_LEN),
        "max_context_length": Setting(lengths.context, _CONTEXT),
        "enable_bucketing": Setting(bool(lengths.token_buckets)),
    }
    if lengths.token_buckets:
        settings["context_encoding_buckets"] = Setting(list(lengths.context_buckets))
        settings["token_generation_buckets"] = Setting(list(lengths.token_buckets))
    return settings


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
    if spec.speculates and step in lengths.prompt_graphs:
        yield (
            f"a prompt graph of {step} positions: NxDI takes it for a step of as many positions "
            "(models/model_base.py); choose another shape.max_prompt_tokens or other buckets"
        )
