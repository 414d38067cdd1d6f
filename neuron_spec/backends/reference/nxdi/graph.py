"""What NxDI's fused graphs take and give: one prompt, or one speculation step of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from neuron_spec.backends.reference.nxdi.acceptance import Accepted
from neuron_spec.backends.reference.nxdi.passes import Buckets

FREE_POSITION = 1
"""Where rows of free slots run along. A draft runs one position before, and never below 0; and no
running row is further back, so that none sees more for it."""

GREEDY_PARAMS = torch.tensor([1.0, 1.0, 1.0])
"""top_k, top_p and temperature as NxDI's adapter fills them in."""


@dataclass(frozen=True)
class Inputs:
    """A step's inputs, all by row: row i is slot i.

    Attributes:
        tokens: [rows] the last token, not in the cache yet.
        positions: [rows] its position; NxDI's attention mask has as many ones.
        params: [rows, 3] top_k, top_p, temperature.
    """

    tokens: Tensor
    positions: Tensor
    params: Tensor

    @classmethod
    def of(cls, tokens: Sequence[int], positions: Sequence[int]) -> Inputs:
        """Greedy inputs."""
        params = GREEDY_PARAMS.expand(len(tokens), -1)
        return cls(torch.tensor(tokens), torch.tensor(positions), params)


@dataclass(frozen=True)
class Begun:
    """The first new token after a prompt, and the logits [vocab] it was chosen from."""

    token: int
    logits: Tensor


@dataclass(frozen=True)
class SampledStep:
    """What a sampling step went through.

    Attributes:
        ids, probs: [rows, k + 1, n] the sampler's list.
        adjusted: [rows, k + 1, n] residual distributions.
        resampled: [rows, k + 1] tokens drawn from them.
        num_accepted_by_test: [rows], which the emitted tokens need not agree with.
        selected: [rows, k + 1] accepted drafts, one resampled token, padding ids.
    """

    ids: Tensor
    probs: Tensor
    adjusted: Tensor
    resampled: Tensor
    num_accepted_by_test: Tensor
    selected: Tensor


@dataclass(frozen=True)
class Step:
    """What a step gives.

    Attributes:
        drafts: [rows, m] all tokens drafted, also those that are not verified; in a tree, its
            nodes but the root.
        draft_logits: one tensor [rows, n, vocab] a draft pass.
        target_tokens: [rows, n] the target's argmax at every verified position or node.
        target_logits: [rows, n, vocab].
        accepted: see `Accepted`.
        sampled: None in a greedy step.
    """

    drafts: Tensor
    draft_logits: tuple[Tensor, ...]
    target_tokens: Tensor
    target_logits: Tensor
    accepted: Accepted
    sampled: SampledStep | None = None


class Graph(Protocol):
    """A compiled fused model."""

    @property
    def buckets(self) -> Buckets:
        """Its static lengths."""

    def encode(self, slot: int, prompt: Sequence[int], params: Tensor) -> Begun:
        """Context encoding of one row, with its [3] sampling parameters."""

    def step(self, inputs: Inputs) -> Step:
        """One speculation step."""

    def decode(self, inputs: Inputs) -> Tensor:
        """One token of the target alone, as a model compiled without speculation: logits
        [rows, vocab]. What a draft would need afterwards is not kept."""
