"""Spec and checkpoints -> the emulated application behind the seam."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from neuron_spec.backends.base import Limits
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import HEADS, Target
from neuron_spec.backends.reference.nxdi.chance import Chance
from neuron_spec.backends.reference.nxdi.eagle import FusedEagle
from neuron_spec.backends.reference.nxdi.eagle_tree import FusedEagleTree
from neuron_spec.backends.reference.nxdi.fused import FusedDraft, TargetAlone
from neuron_spec.backends.reference.nxdi.graph import Graph
from neuron_spec.backends.reference.nxdi.medusa import Medusa
from neuron_spec.backends.reference.nxdi.passes import Buckets, Draft
from neuron_spec.backends.reference.nxdi.sampler import Sampling
from neuron_spec.backends.reference.nxdi.single import MedusaApplication, UnfusedApplication
from neuron_spec.backends.reference.nxdi.speculator import (
    Application,
    FusedApplication,
    NxdiSpeculator,
)
from neuron_spec.backends.reference.nxdi.token_tree import TokenTree
from neuron_spec.backends.reference.nxdi.unfused import Unfused
from neuron_spec.backends.reference.parallel_heads import MedusaHeads
from neuron_spec.spec.emulation import is_unfused
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.trees import Tree


def open_emulation(
    spec: BuildSpec,
    target: Target,
    draft_directory: Path | None,
    *,
    placement: Placement,
    limits: Limits,
) -> NxdiSpeculator:
    """Load the draft and join it with the target as NxDI compiles them."""
    draft: Any = None
    if draft_directory is not None and spec.speculates:
        draft = HEADS[spec.draft.method].load(draft_directory, placement)
    application = _application(spec, target, draft)
    return NxdiSpeculator(application, limits=limits)


def buckets_of(spec: BuildSpec) -> Buckets:
    """The static lengths the spec's model is compiled with; k + 1 places behind the limit."""
    length = spec.num_draft_tokens + 1
    shape = spec.shape
    return Buckets(length, shape.max_prompt_tokens, shape.max_total_tokens + length)


def sampling_of(spec: BuildSpec) -> Sampling:
    """NxDI's sampler for the spec's rule: parameters by request, which it calls `dynamic`, unless
    `neuron.sampling` says otherwise."""
    if spec.verification.rule == "greedy":
        return Sampling()
    config = spec.neuron.sampling if spec.neuron else {}
    return Sampling(
        do_sample=True,
        dynamic=config.get("dynamic", True),
        deterministic=config.get("deterministic", False),
        global_topk=config.get("global_topk", Sampling.global_topk),
    )


def _application(spec: BuildSpec, target: Target, draft: Any) -> Application:
    lengths, k = buckets_of(spec), spec.num_draft_tokens
    tree = Tree.from_paths(spec.draft.tree) if spec.draft.tree else Tree.chain(k)
    if spec.draft.method == "medusa":
        return MedusaApplication(Medusa(target, cast(MedusaHeads, draft), lengths, tree=tree))
    pad_token_id = _pad_token_id(target)
    if is_unfused(spec):
        unfused = Unfused(
            target, draft, lengths, num_assistant_tokens=k + 1, pad_token_id=pad_token_id
        )
        return UnfusedApplication(unfused)
    generator = torch.Generator()
    generator.seed()

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=generator)

    chance = Chance(sampling_of(spec), draw, pad_token_id)
    graph = _graph(spec, target, draft, chance)
    return FusedApplication(graph, tree=tree, chance=chance, generator=generator)


def _graph(spec: BuildSpec, target: Target, draft: Draft, chance: Chance) -> Graph:
    lengths, num_slots = buckets_of(spec), spec.shape.batch_size
    if spec.draft.method == "none":
        return TargetAlone(target, lengths, chance)
    if spec.draft.method == "model":
        return FusedDraft(target, draft, lengths)
    if spec.draft.tree:
        tree = TokenTree(Tree.from_paths(spec.draft.tree))
        return FusedEagleTree(target, draft, lengths, num_slots=num_slots, tree=tree)
    return FusedEagle(target, draft, lengths, num_slots=num_slots, chance=chance)


def _pad_token_id(target: Target) -> int:
    """Of the target's config; 0 where it has none."""
    found = target.config.raw.get("pad_token_id")
    return found if isinstance(found, int) else 0
