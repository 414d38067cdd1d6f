"""What a checkpoint says twice and differently, or leaves open: never settled without a word.

An error stops `prepare` and `check`. Everything else is settled in the way that the sentence says:
`prepare` records it as a decision, `check` lists it, `inspect` shows it.
"""

from __future__ import annotations

from neuron_spec.checkpoints.contradictions import files, head, pair, quantization, rope
from neuron_spec.checkpoints.contradictions.base import (
    FAMILIES_WITH_LAYERS,
    Contradiction,
    errors,
    remarks,
)
from neuron_spec.checkpoints.contradictions.quantization import is_quantized, needed_of_target
from neuron_spec.checkpoints.contradictions.vocabulary import adopt_vocabulary
from neuron_spec.checkpoints.identify import Identity

__all__ = [
    "Contradiction",
    "adopt_vocabulary",
    "errors",
    "is_quantized",
    "needed_of_target",
    "of_checkpoint",
    "of_pair",
    "remarks",
]


def of_checkpoint(identity: Identity, *, is_draft: bool | None = None) -> list[Contradiction]:
    """What one directory alone shows.

    Values are read in one case only: an LM head that is stored although it is tied.

    Args:
        is_draft: whether it drafts; by default every head does and no language model.
    """
    is_head = identity.family != "causal-lm"
    found = list(files.unread_files(identity.files))
    found += quantization.of(identity, is_draft=is_head if is_draft is None else is_draft)
    if not is_head:
        return [*found, *head.tied_head(identity), *rope.of_model(identity)]
    found += files.mixed_dtypes(identity)
    if identity.family in FAMILIES_WITH_LAYERS:
        found += rope.of_head(identity)
    return found


def of_pair(draft: Identity, target: Identity) -> list[Contradiction]:
    """What only shows when a draft head stands beside its target."""
    return list(pair.of(draft, target))
