"""Spec and loaded target -> the drafter, one entry a draft method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import HEADS, DraftModel, Target
from neuron_spec.backends.reference.self_drafts import EarlyExit, MtpLayer
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.checkpoints.pieces import read_pieces, reencoder, shared_ids
from neuron_spec.drafters import (
    Drafter,
    DraftShape,
    IntersectionDrafter,
    Translation,
)
from neuron_spec.drafters.lookup import LOOKUP_DRAFTERS, with_lookup
from neuron_spec.spec.schema import DraftSpec


@dataclass(frozen=True)
class DraftParts:
    """What a drafter is made of; `draft_directory` where the method has a checkpoint."""

    spec: DraftSpec
    shape: DraftShape
    placement: Placement
    target: Target
    target_directory: Path
    draft_directory: Path | None


def drafter_of(parts: DraftParts) -> Drafter | None:
    """The drafter of the spec's method, or None without speculation."""
    method = parts.spec.method
    return None if method == "none" else with_lookup(parts.spec, _MAKERS[method](parts))


def _head(parts: DraftParts) -> Drafter:
    assert parts.draft_directory is not None
    head = HEADS[parts.spec.method].load(parts.draft_directory, parts.placement)
    return head.drafter(parts.shape)


def _model(parts: DraftParts) -> Drafter:
    if parts.spec.vocabulary == "same":
        return _head(parts)
    assert parts.draft_directory is not None
    draft = DraftModel(parts.draft_directory, parts.placement)
    return IntersectionDrafter(
        draft.forward,
        draft.logits,
        _translation(parts.draft_directory, parts.target_directory, parts.placement.device),
        max_positions=parts.placement.length,
    )


def _translation(draft: Path, target: Path, device: torch.device) -> Translation:
    return Translation.of_shared(
        shared_ids(read_pieces(draft) or {}, read_pieces(target) or {}),
        reencoder(target, draft),
        draft_vocab=read_config(draft).vocab_size,
        target_vocab=read_config(target).vocab_size,
        device=device,
    )


def _early_exit(parts: DraftParts) -> Drafter:
    assert parts.spec.exit_layer is not None
    draft = EarlyExit(parts.target, parts.spec.exit_layer, parts.placement)
    return draft.drafter(parts.shape)


def _mtp(parts: DraftParts) -> Drafter:
    layer = MtpLayer(parts.target, parts.target_directory, parts.placement)
    return layer.drafter(parts.shape)


def _lookup(parts: DraftParts) -> Drafter:
    return LOOKUP_DRAFTERS[parts.spec.method](parts.spec)


_MAKERS: dict[str, Callable[[DraftParts], Drafter]] = {
    **dict.fromkeys(HEADS, _head),
    "model": _model,
    "early-exit": _early_exit,
    "mtp": _mtp,
    **dict.fromkeys(LOOKUP_DRAFTERS, _lookup),
}
