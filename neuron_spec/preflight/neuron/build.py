"""What a spec with a [neuron] table would be built as: the numbers that the constraints compare.

The same decisions as the Neuron backend's configuration takes, in as far as a constraint depends on
them; a test keeps the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.platforms.instances import INSTANCES, Instance
from neuron_spec.platforms.nxdi_keywords import faults_of, keywords, release_number
from neuron_spec.platforms.nxdi_models import (
    EAGLES,
    FUSED,
    RUN_BY_LLAMA,
    FamilySupport,
    Path,
    family_of,
)
from neuron_spec.spec.neuron import NeuronSpec
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.trees import Tree

TILE = 128  # NxDI tiles the KV cache of fused graphs by so many positions, and whole tiles only

_PATHS: dict[str, Path] = {
    "none": "alone",
    "ngram": "host",
    "suffix": "host",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
}


@dataclass(frozen=True)
class NeuronBuild:
    """A spec, what is known of its models, and what follows for NxDI.

    Attributes:
        target_type, draft_type: model_type as in config.json, also where the rest of the config is
            of a kind that this package does not read; None if unknown.
        draft_names: canonical names of the draft's tensors.
        num_medusa_heads: heads in the draft's file; None if it holds none.
    """

    spec: BuildSpec
    neuron: NeuronSpec
    target: ModelConfig | None = None
    draft: ModelConfig | None = None
    target_type: str | None = None
    draft_type: str | None = None
    draft_names: frozenset[str] = field(default_factory=frozenset)
    num_medusa_heads: int | None = None

    @cached_property
    def path(self) -> Path | None:
        """The way through NxDI; None where NxDI has none."""
        draft = self.spec.draft
        if draft.dynamic_tree or draft.vocabulary == "intersection":
            return None
        if draft.tree and draft.method not in ("eagle", "medusa"):
            return None
        if draft.method == "model":
            return "fused" if self.neuron.fused else "unfused"
        if draft.method == "eagle" and draft.tree:
            return "eagle-tree"
        return _PATHS.get(draft.method)

    @property
    def is_fused(self) -> bool:
        """Whether one graph drafts and verifies."""
        return self.path in FUSED

    @property
    def is_eagle(self) -> bool:
        """Whether the draft reads the target's hidden states in that graph."""
        return self.path in EAGLES

    @property
    def samples_on_device(self) -> bool:
        """Whether tokens leave the device, not logits."""
        return self.is_fused or self.path == "medusa" or self.neuron.sample_on_device

    @property
    def has_draft_model(self) -> bool:
        """Whether NxDI loads a second model."""
        return self.is_fused or self.path == "unfused"

    @property
    def instance(self) -> Instance | None:
        """None if no such instance is known."""
        return INSTANCES.get(self.neuron.instance)

    @property
    def lnc(self) -> int:
        """Physical cores a logical core."""
        default = self.instance.default_lnc if self.instance else 1
        return self.neuron.logical_nc_config or default

    @property
    def draft_tp_degree(self) -> int:
        """Cores that share one copy of the draft."""
        return self.neuron.draft_tp_degree or self.neuron.tp_degree

    @cached_property
    def tree(self) -> Tree:
        """The drafted tree; a chain is the tree of one branch."""
        if self.spec.draft.tree:
            return Tree.from_paths(self.spec.draft.tree).first(self.spec.num_draft_tokens)
        return Tree.chain(self.spec.num_draft_tokens)

    @property
    def step(self) -> int:
        """Positions that the target scores in one step: k + 1, or the nodes of the tree."""
        return self.tree.num_nodes

    @property
    def needed_positions(self) -> int:
        """Room for a whole step behind the last token of the longest request."""
        return self.spec.shape.max_total_tokens + (self.step if self.spec.speculates else 0)

    @property
    def cache_length(self) -> int:
        """Positions of the KV cache."""
        if given := self.neuron.token_generation_buckets:
            return given[-1]
        return self.needed_positions if self.needed_positions <= TILE else _tiled(self)

    @property
    def context_buckets(self) -> tuple[int, ...]:
        """Lengths of the prompt graphs, shortest first."""
        if given := self.neuron.context_encoding_buckets:
            return given
        prompt = -(-self.spec.shape.max_prompt_tokens // TILE) * TILE
        longest = min(self.cache_length, prompt)
        if not self.neuron.bucketing:
            return (longest,)
        return tuple(length for length in _powers(longest) if length != self.step)

    @property
    def family(self) -> FamilySupport | None:
        """NxDI's family of the target, or Llama's where that runs it; None if unknown."""
        own = family_of(self.target_type) if self.target_type else None
        if own is None or own.family not in RUN_BY_LLAMA:
            return own
        is_too_new = release_number(own.since) > release_number(self.neuron.sdk)
        return family_of("llama") if is_too_new or self.path == "medusa" else own

    @property
    def draft_family(self) -> FamilySupport | None:
        """NxDI's family of the second model: EAGLE drafts exist as Llama classes only."""
        if self.is_eagle:
            return family_of("llama")
        return family_of(self.draft_type) if self.draft_type else None

    @cached_property
    def keywords(self) -> Mapping[str, Any]:
        """Keyword -> default of NeuronConfig, or of MoENeuronConfig where there may be experts."""
        raw = self.target.raw if self.target else {"num_experts": None}
        may_have_experts = any(name in raw for name in ("num_experts", "num_local_experts"))
        experts = keywords("moe_neuron_config", self.neuron.sdk) if may_have_experts else {}
        return {**keywords("neuron_config", self.neuron.sdk), **experts}

    @property
    def settings(self) -> Mapping[str, Any]:
        """Keywords of NeuronConfig that constraints compare: what follows from the spec, and what
        [neuron.config] adds, but for what is misspelt or of another type (see `keywords`)."""
        given, known = self.neuron.config, self.keywords
        return {
            "torch_dtype": self.spec.target.dtype,
            "tp_degree": self.neuron.tp_degree,
            "batch_size": self.spec.shape.batch_size,
            "is_continuous_batching": self.spec.shape.batch_size > 1,
            "sequence_parallel_enabled": self.path == "eagle3",
            **{k: v for k, v in given.items() if not any(faults_of({k: v}, known))},
        }


def _tiled(build: NeuronBuild) -> int:
    return -(-build.needed_positions // TILE) * TILE


def _powers(length: int) -> Iterator[int]:
    """From 128; one that is nearly the length would be no gain."""
    for shift in range(length.bit_length()):
        if 4 * (TILE << shift) <= 3 * length:
            yield TILE << shift
    yield length
