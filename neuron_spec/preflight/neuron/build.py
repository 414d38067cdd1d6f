"""What a spec with a [neuron] table would be built as: the numbers that the constraints compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.platforms.instances import INSTANCES, Instance
from neuron_spec.platforms.nxdi_keywords import faults_of
from neuron_spec.platforms.nxdi_models import (
    EAGLES,
    FUSED,
    FamilySupport,
    Path,
    family_of,
    path_of,
    runner_of,
)
from neuron_spec.platforms.nxdi_pass_through import family_keywords
from neuron_spec.spec.graphs import Lengths, lengths_of, needed_positions, step_length, tree_of
from neuron_spec.spec.neuron import NeuronSpec
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.trees import Tree


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
        if draft.dynamic_tree or draft.lookup or draft.vocabulary == "intersection":
            return None
        return path_of(draft.method, has_tree=bool(draft.tree), is_fused=self.neuron.fused)

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
        return tree_of(self.spec)

    @property
    def step(self) -> int:
        """Positions of a step's graph."""
        return step_length(self.spec)

    @property
    def needed_positions(self) -> int:
        """Room for a whole step behind the last token of the longest request."""
        return needed_positions(self.spec, self.step)

    @cached_property
    def lengths(self) -> Lengths:
        """Of the KV cache and of all graphs."""
        return lengths_of(self.spec, self.step)

    @property
    def cache_length(self) -> int:
        """Positions of the KV cache."""
        return self.lengths.total

    @property
    def context_buckets(self) -> tuple[int, ...]:
        """Lengths of the prompt graphs, shortest first."""
        return self.lengths.prompt_graphs

    @property
    def family(self) -> FamilySupport | None:
        """NxDI's family of the target, or Llama's where that runs it; None if unknown."""
        if self.target_type is None:
            return None
        return runner_of(self.target_type, self.path, self.neuron.sdk)

    @property
    def draft_family(self) -> FamilySupport | None:
        """NxDI's family of the second model: EAGLE drafts exist as Llama classes only."""
        if self.is_eagle:
            return family_of("llama")
        return runner_of(self.draft_type, None, self.neuron.sdk) if self.draft_type else None

    @cached_property
    def keywords(self) -> Mapping[str, Any]:
        """Keyword -> default of the family's NeuronConfig; of all families where it is unknown."""
        return family_keywords(self.neuron.sdk, self.family)

    @property
    def decoders(self) -> Iterator[tuple[str, ModelConfig, FamilySupport]]:
        """Role, config and family of every decoder that NxDI would run."""
        if self.target is not None and self.family is not None:
            yield "target", self.target, self.family
        if self.has_draft_model and self.draft is not None and self.draft_family is not None:
            yield "draft", self.draft, self.draft_family

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
