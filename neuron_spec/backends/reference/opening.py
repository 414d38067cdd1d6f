"""Spec and checkpoints -> target, drafter and rule behind the seam."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from neuron_spec.artifacts import Artifact
from neuron_spec.backends.base import Limits, Speculator
from neuron_spec.backends.decisions import Decisions
from neuron_spec.backends.reference.cache import round_up
from neuron_spec.backends.reference.drafting import DraftParts, drafter_of
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.machine import machine
from neuron_spec.backends.reference.models import HEADS, Target
from neuron_spec.backends.reference.native.choice import native_of
from neuron_spec.backends.reference.native.pages import LargePages
from neuron_spec.backends.reference.pin_check import PinCheck
from neuron_spec.backends.reference.pinned import PinnedShape
from neuron_spec.backends.reference.recorded import CudaGraphs
from neuron_spec.backends.reference.scoring import PinnedScore, WideScore
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.drafters import DraftShape, GrowDynamicTree
from neuron_spec.errors import UserError
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.trees import NO_PARENT, Tree


def open_speculator(
    spec: BuildSpec,
    target_directory: Path,
    draft_directory: Path | None,
    pages: LargePages | None = None,
) -> Speculator:
    """Load target and draft and join them with the spec's drafter and rule, or as NxDI does.

    Args:
        pages: where the kernels' weights go.

    Raises:
        UserError: CUDA is asked for and there is none.
        CheckpointError: weights that do not load.
    """
    pages = pages or LargePages()
    placement = placement_of(spec, pages)
    config, head = read_config(target_directory), HEADS.get(spec.draft.method)
    taps = head.taps(draft_directory, config.num_hidden_layers) if head and draft_directory else ()
    target = Target(target_directory, placement, taps=taps)
    limits = replace(Limits.of(spec), vocab_size=config.vocab_size)
    drafts = replace(placement, native=native_of(spec, "draft", pages))
    if spec.reference.emulate == "nxdi":
        from neuron_spec.backends.reference.nxdi.opening import open_emulation

        return open_emulation(spec, target, draft_directory, placement=drafts, limits=limits)
    parts = DraftParts(
        spec.draft, draft_shape(spec), drafts, target, target_directory, draft_directory
    )
    decisions = Decisions(
        spec.verification.rule,
        spec.verification.parameters,
        draws_drafts=spec.draft.sampled,
        vocab_size=config.vocab_size,
    )
    limits = replace(limits, has_logprobs=True, has_grammars=True)
    # The compiled kernels treat a token alike wherever it stands, however wide the pass.
    is_padded = spec.verification.pin_shapes and placement.native is None
    return ReferenceSpeculator(
        target,
        drafter_of(parts),
        decisions,
        limits=limits,
        device=placement.device,
        score=PinnedScore(target, pinned_shape(spec)) if is_padded else WideScore(target),
    )


def open_built(artifact: Artifact, pages: LargePages) -> Speculator:
    """What an artifact links to, weights in `pages`.

    Pinned shapes are checked anew on another machine, or with another number of threads.
    """
    draft = artifact.model_directory("draft") if "draft" in artifact.manifest.models else None
    spec, record = artifact.spec, artifact.manifest.pinned_shapes
    speculator = open_speculator(spec, artifact.model_directory("target"), draft, pages)
    here = machine(torch.device(spec.reference.device)), torch.get_num_threads()
    if record and (record.machine, record.num_threads) != here:
        check_pinned(spec, speculator)
    return speculator


def pinned_shape(spec: BuildSpec) -> PinnedShape:
    """Of every pass, where the spec pins it."""
    return PinnedShape(spec.shape.batch_size, spec.num_draft_tokens + 1)


def check_pinned(spec: BuildSpec, speculator: Speculator) -> dict[str, Any]:
    """The report's entry of pinned shapes; empty where they are not."""
    if not isinstance(speculator, ReferenceSpeculator) or not spec.verification.pin_shapes:
        return {}
    shape, k = draft_shape(spec), spec.num_draft_tokens
    tree = shape.tree.first(k) if shape.tree else None
    if shape.dynamic_tree:  # any with branches will do
        tree = Tree((NO_PARENT, *(node // 2 for node in range(k))))
    check = PinCheck(speculator.score, pinned_shape(spec), speculator.limits, tree)
    return {"pinned_shapes": check.run()}


def draft_shape(spec: BuildSpec) -> DraftShape:
    """What the spec lets grow below the last token."""
    dynamic = spec.draft.dynamic_tree
    return DraftShape(
        tree=Tree.from_paths(spec.draft.tree) if spec.draft.tree else None,
        dynamic_tree=GrowDynamicTree(dynamic.depth, dynamic.top_k) if dynamic else None,
    )


def cache_length(spec: BuildSpec) -> int:
    """Positions of the KV cache: a step looks k + 1 ahead, and so may a padded draft row; a dynamic
    tree also keeps candidates that it does not propose. Rounded up, so that every slot begins at an
    address of the same alignment, by which kernels may sum in another order: a kept beginning of a
    prompt, and pinned shapes, are the same bits in every slot."""
    dynamic = spec.draft.dynamic_tree
    candidates = dynamic.depth * dynamic.top_k if dynamic else 0
    length = spec.shape.max_total_tokens + 2 * (spec.num_draft_tokens + 1) + candidates
    return round_up(length)


def placement_of(spec: BuildSpec, pages: LargePages | None = None) -> Placement:
    """Where and how the target runs.

    Raises:
        UserError: CUDA is asked for and there is none.
    """
    if spec.reference.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "no CUDA device is available",
            where="reference.device",
            found="cuda",
            mend="set reference.device to 'cpu'",
        )
    if spec.reference.num_threads is not None:
        torch.set_num_threads(spec.reference.num_threads)
    return Placement(
        num_slots=spec.shape.batch_size,
        length=cache_length(spec),
        dtype=getattr(torch, spec.reference.dtype),
        device=torch.device(spec.reference.device),
        native=native_of(spec, pages=pages),
        record=CudaGraphs() if is_recorded(spec) else None,
    )


def is_recorded(spec: BuildSpec) -> bool:
    """Whether passes of few tokens become CUDA graphs."""
    return spec.reference.device == "cuda" and spec.reference.kernels == "auto"
