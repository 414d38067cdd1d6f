"""A request's options as the device's sampler takes them (`modules/generation/sampling.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_spec.backends.base import Decoding
from neuron_spec.backends.neuron.running.inputs import GREEDY_PARAMS, DeviceParams

SAMPLING_OPTIONS = frozenset({"temperature", "top_k", "top_p"})
"""What it knows; there are no seeds, penalties or biases on the device."""


@dataclass(frozen=True)
class DeviceSampler:
    """The sampler inside a graph.

    Attributes:
        draws: whether it draws at all; else every output is the best token.
        global_topk: how many of the likeliest tokens it looks at; 0 or less for all.
    """

    draws: bool = False
    global_topk: int = 256

    def params(self, decoding: Decoding) -> DeviceParams:
        """Of one request. To NxDI a top_k of 0 hides every token alike, so that "all tokens" is the
        whole of its list here."""
        options = decoding.sampling
        if not self.draws or options.is_greedy:
            return GREEDY_PARAMS
        top_k = options.top_k if options.top_k > 0 else self.global_topk
        return float(top_k), options.top_p, options.temperature
