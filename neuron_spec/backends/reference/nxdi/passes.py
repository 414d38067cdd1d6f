"""One forward pass as NxDI's graphs make it, over the reference models.

NxDI computes token generation in two parts (`modules/attention/attention_base.py`,
`compute_for_token_gen`): the "prior" entries of the cache under one mask, and the "active" tokens
of this pass under another. New keys and values reach the cache after the pass, at places of their
own, which need not be the positions of the rotary embedding. What a mask lets through is seen,
stale or twice: most of what sets NxDI apart follows from here.

The new entries are kept in a margin behind the bucket during the pass, and moved afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from neuron_spec.backends.reference.cache import KVCache
from neuron_spec.backends.reference.models import Target
from neuron_spec.drafters import Branches

PADDING_POSITION = 1
"""Position of padding tokens (`utils/hf_adapter.py`, `prepare_inputs_for_generation`)."""


class Draft(Protocol):
    """A loaded draft with a KV cache."""

    @property
    def cache(self) -> KVCache:
        """The KV cache."""

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        starts: Sequence[int],
        first_slot: int = 0,
        branches: Branches | None = None,
    ) -> Tensor:
        """See `neuron_spec.drafters.growth.Forward`."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""


@dataclass(frozen=True)
class Buckets:
    """The static lengths of a compiled NxDI model.

    Attributes:
        speculation_length: positions that the target scores in a step; in a tree, its nodes.
        max_context_length: to which a prompt is padded.
        seq_len: places of the cache.
    """

    speculation_length: int
    max_context_length: int
    seq_len: int

    @property
    def cache_length(self) -> int:
        """Places that the models' caches need: the margin behind the bucket included."""
        return self.seq_len + max(self.speculation_length, 1)

    def seen(self, lengths: Sequence[int]) -> Tensor:
        """NxDI's attention mask: [rows, seq_len] bool, the first `lengths` places of each row."""
        return torch.arange(self.seq_len) < torch.tensor(lengths)[:, None]


@dataclass(frozen=True)
class Pass:
    """Inputs of one pass; row i is slot i.

    Attributes:
        tokens: [rows, n] ids.
        rotary: [rows, n] positions of the rotary embedding.
        prior: [rows, n, seq_len] bool, or [rows, 1, seq_len] for all alike.
        active: [n, n] bool.
    """

    tokens: Tensor
    rotary: Tensor
    prior: Tensor
    active: Tensor

    def branches(self) -> Branches:
        """The same for the reference models: everything counts from place 0."""
        rows, count = self.tokens.shape
        prior = self.prior.expand(rows, count, -1)
        mask = torch.cat([prior, self.active.expand(rows, count, count)], dim=2)
        return Branches([0] * rows, self.rotary, mask)

    def starts(self) -> list[int]:
        """Where the new entries stand during the pass: behind the bucket."""
        return [self.prior.shape[2]] * len(self.tokens)


def run_target(target: Target, inputs: Pass) -> tuple[Tensor, Tensor]:
    """Hidden states and features [rows, n, …]; nothing is written yet, see `write`."""
    return target.hidden(inputs.tokens, inputs.starts(), 0, inputs.branches())


def run_draft(draft: Draft, inputs: Pass, features: Tensor) -> Tensor:
    """Output features [rows, n, hidden], stored where the rotary positions say."""
    output = draft.forward(inputs.tokens, features, inputs.starts(), 0, inputs.branches())
    write(draft.cache, inputs.prior.shape[2], inputs.rotary)
    return output


def write(cache: KVCache, seq_len: int, places: Tensor) -> None:
    """Move the last pass's new entries to `places` [rows, n].

    Raises:
        IndexError: beyond the bucket. (On a CPU NxDI fails in the same place; what a device does
            was not recorded.)
    """
    if bool(((places < 0) | (places >= seq_len)).any()):
        raise IndexError(f"places {places.tolist()} are beyond the bucket of {seq_len}")
    count = places.shape[1]
    for tensor in (*cache.keys, *cache.values):
        for slot, row in enumerate(places):
            tensor[slot, :, row] = tensor[slot, :, seq_len : seq_len + count]


def padded(prompt: Sequence[int], buckets: Buckets) -> tuple[Tensor, Tensor]:
    """A prompt as context encoding gets it: ids and positions [1, n] of the bucket.

    NxDI refuses longer ones. Here they are encoded at their own length, because `verify` asks for
    the logits after whole outputs.

    Raises:
        ValueError: no token, or more than the cache has places for.
    """
    if not 1 <= len(prompt) <= buckets.seq_len:
        raise ValueError(f"a prompt of {len(prompt)} tokens in a bucket of {buckets.seq_len}")
    num_padding = max(0, buckets.max_context_length - len(prompt))
    tokens = torch.tensor([[*prompt, *[0] * num_padding]])
    positions = torch.tensor([[*range(len(prompt)), *[PADDING_POSITION] * num_padding]])
    return tokens, positions


def last_place(positions: Tensor) -> int:
    """Where NxDI looks for the last token of a padded prompt: at its largest position. After a
    prompt of one token that is the first padding token, and the output is that of the padding."""
    return int(positions[0].argmax())


def context_branches(positions: Tensor) -> Branches:
    """Context encoding: [1, n] positions, every token sees all before it, padding included."""
    count = positions.shape[1]
    return Branches([0], positions, causal(count)[None])


def causal(count: int) -> Tensor:
    """[count, count] bool: each sees those before it and itself."""
    return torch.ones(count, count, dtype=torch.bool).tril()
