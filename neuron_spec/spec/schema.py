"""The build spec as data: every field with its type, bounds and a description that teaches.

A spec is frozen once loaded. Unknown keys are errors (see `load.py` for how they are told).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from neuron_spec.errors import SpecError
from neuron_spec.spec.emulation import emulation_faults
from neuron_spec.spec.neuron import NeuronSpec
from neuron_spec.spec.section import Section
from neuron_spec.trees import Tree

DraftMethod = Literal[
    "none",
    "model",
    "medusa",
    "hydra",
    "eagle",
    "eagle3",
    "mtp",
    "early-exit",
    "ngram",
    "suffix",
]
Rule = Literal["greedy", "rejection", "lenient", "typical", "sample-match"]
Dtype = Literal["float32", "bfloat16", "float16"]
Weights = Literal["as-dtype", "int8"]
Device = Literal["cpu", "cuda"]
VocabularyMatch = Literal["same", "intersection"]

DRAFT_METHODS: tuple[str, ...] = get_args(DraftMethod)
RULES: tuple[str, ...] = get_args(Rule)
METHODS_WITHOUT_MODEL = ("none", "mtp", "early-exit", "ngram", "suffix")
METHODS_WITH_TREE = ("model", "medusa", "hydra", "eagle", "eagle3", "mtp", "early-exit")
METHODS_WITH_DYNAMIC_TREE = ("model", "eagle", "eagle3", "mtp", "early-exit")
METHODS_THAT_SAMPLE = ("model", "hydra", "eagle", "eagle3", "mtp", "early-exit")
METHODS_WITHOUT_DRAFT = ("none", "ngram", "suffix")
MAX_CHAIN = 31


class TargetSpec(Section):
    """The model whose output counts."""

    model: str = Field(
        description="Directory (relative to the spec file), hub id, or demo:smollm2-135m-instruct."
    )
    dtype: Dtype = Field("bfloat16", description="Type of weights and arithmetic on Neuron.")


class DynamicTreeSpec(Section):
    """A draft tree that follows the draft's confidence (EAGLE-2, arXiv:2406.16858)."""

    depth: int = Field(5, ge=1, le=16, description="Levels of the tree.")
    top_k: int = Field(
        8, ge=1, le=32, description="Nodes expanded at every level, and proposals of each."
    )


class LookupSpec(Section):
    """A lookup that goes before a draft (reference backend only)."""

    method: Literal["suffix", "ngram"] = Field(
        "suffix", description="As draft.method, and set up by the same fields of [draft]."
    )
    num_draft_tokens: int = Field(
        8, ge=1, le=MAX_CHAIN, description="Longest chain that the lookup proposes."
    )
    shortest: int = Field(
        2,
        ge=1,
        le=MAX_CHAIN,
        description="Where it finds fewer tokens than these, the draft proposes.",
    )

    @model_validator(mode="after")
    def _can_be_found(self) -> LookupSpec:
        if self.shortest > self.num_draft_tokens:
            raise ValueError(
                f"draft.lookup.shortest {self.shortest} is larger than "
                f"draft.lookup.num_draft_tokens {self.num_draft_tokens}"
            )
        return self


class DraftSpec(Section):
    """Whatever proposes tokens."""

    method: DraftMethod = Field("none", description="How tokens are proposed.")
    model: str | None = Field(
        None, description="Directory or hub id of the draft checkpoint, as published or prepared."
    )
    num_draft_tokens: int = Field(
        4,
        ge=1,
        le=255,
        description="Draft length k; the target scores k + 1 positions a step. In a tree, its "
        "nodes: by default as many as the tree has.",
    )
    tree: tuple[tuple[int, ...], ...] = Field(
        (),
        description="Draft tree of fixed shape as rank paths, [[0], [1], [0, 0]]: or a JSON file "
        "of such paths, or of NxDI's token_tree_config. Empty: a chain.",
    )
    dynamic_tree: DynamicTreeSpec | None = Field(
        None, description="A tree that follows the draft's confidence instead of a fixed shape."
    )
    sampled: bool = Field(
        False,
        description="Draw drafted tokens from the draft's distribution (rules rejection and "
        "lenient) instead of taking its best ones, as NxDI does.",
    )
    by_load: tuple[tuple[int, int], ...] = Field(
        (),
        description="[[1, 4], [8, 2], [17, 0]]: from so many running requests on, this k; "
        "empty: num_draft_tokens at every load.",
    )
    lookup: LookupSpec | None = Field(
        None,
        description="A lookup that proposes instead of the draft where the text repeats itself; {} "
        "for its defaults (reference backend only).",
    )
    ngram_sizes: tuple[int, int] = Field(
        (1, 3), description="Shortest and longest suffix that `ngram` looks up, in tokens."
    )
    suffix_depth: int = Field(
        24,
        ge=2,
        le=256,
        description="Longest string that `suffix` counts: matched and proposed tokens together.",
    )
    suffix_min_probability: float = Field(
        0.1, ge=0, le=1, description="`suffix` stops where its estimate falls below this."
    )
    suffix_answers: int = Field(
        1000,
        ge=0,
        le=1_000_000,
        description="Earlier answers that `suffix` keeps, the oldest dropped first, each of their "
        "tokens about 300 bytes; 0: none.",
    )
    exit_layer: int | None = Field(
        None, ge=1, description="`early-exit` drafts with so many of the target's first layers."
    )
    vocabulary: VocabularyMatch = Field(
        "same",
        description="Of `model`: same, the draft has the target's tokenizer; intersection, it has "
        "another one and proposes the tokens that both have (reference backend only).",
    )

    @model_validator(mode="after")
    def _method_and_model_agree(self) -> DraftSpec:
        takes_model = self.method not in METHODS_WITHOUT_MODEL
        if self.model is not None and not takes_model:
            raise ValueError(f"draft.model is given but draft.method is '{self.method}'")
        if self.model is None and takes_model:
            raise ValueError(f"draft.method '{self.method}' needs draft.model")
        return self

    @model_validator(mode="before")
    @classmethod
    def _a_tree_has_its_own_length(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "num_draft_tokens" in data:
            return data
        tree = data.get("tree")
        return (
            {**data, "num_draft_tokens": len(tree)}
            if isinstance(tree, (list, tuple)) and tree
            else data
        )

    @model_validator(mode="after")
    def _shape_and_method_agree(self) -> DraftSpec:
        if self.tree and self.dynamic_tree:
            raise ValueError("draft.tree and draft.dynamic_tree exclude each other")
        if self.tree and self.method not in METHODS_WITH_TREE:
            raise ValueError(f"draft.tree: draft.method '{self.method}' drafts no trees")
        if self.dynamic_tree and self.method not in METHODS_WITH_DYNAMIC_TREE:
            raise ValueError(f"draft.dynamic_tree: not with draft.method '{self.method}'")
        if self.tree:
            try:
                num_nodes = Tree.from_paths(self.tree).num_draft_tokens
            except SpecError as error:
                raise ValueError(f"draft.tree: {error}") from None
            if self.num_draft_tokens > num_nodes:
                found = f"draft.num_draft_tokens {self.num_draft_tokens}"
                raise ValueError(f"{found}: the tree has {num_nodes} nodes")
        elif not self.dynamic_tree and self.num_draft_tokens > MAX_CHAIN:
            found = f"draft.num_draft_tokens: a chain has at most {MAX_CHAIN}"
            raise ValueError(f"{found} (found {self.num_draft_tokens})")
        if self.sampled and (self.tree or self.dynamic_tree):
            raise ValueError("draft.sampled: trees take the draft's best tokens")
        if self.sampled and self.method not in METHODS_THAT_SAMPLE:
            raise ValueError(f"draft.sampled: draft.method '{self.method}' has no distribution")
        return self

    @model_validator(mode="after")
    def _bands_rise(self) -> DraftSpec:
        starts = [first for first, _ in self.by_load]
        if starts and (starts[0] != 1 or starts != sorted(set(starts))):
            raise ValueError("draft.by_load: expected rising loads, the first of them 1")
        largest = self.longest if self.method != "none" else 0
        if any(not 0 <= k <= largest for _, k in self.by_load):
            raise ValueError(f"draft.by_load: expected every k within 0 … {largest}")
        return self

    @model_validator(mode="after")
    def _only_early_exit_leaves_early(self) -> DraftSpec:
        if self.method == "early-exit" and self.exit_layer is None:
            raise ValueError("draft.method 'early-exit' needs draft.exit_layer")
        if self.method != "early-exit" and self.exit_layer is not None:
            raise ValueError(f"draft.exit_layer is given but draft.method is '{self.method}'")
        return self

    @model_validator(mode="after")
    def _an_intersection_drafts_greedy_chains(self) -> DraftSpec:
        if self.vocabulary == "intersection":
            if self.method != "model":
                raise ValueError(f"draft.vocabulary: draft.method '{self.method}' has no tokenizer")
            if self.tree or self.dynamic_tree or self.sampled:
                raise ValueError("draft.vocabulary: an intersection drafts greedy chains only")
        return self

    @model_validator(mode="after")
    def _a_lookup_goes_before_a_chain(self) -> DraftSpec:
        if self.lookup and self.method in METHODS_WITHOUT_DRAFT:
            raise ValueError(f"draft.lookup: draft.method '{self.method}' is no draft to go before")
        if self.lookup and (self.tree or self.dynamic_tree):
            raise ValueError("draft.lookup: goes before chains, not trees")
        return self

    @property
    def longest(self) -> int:
        """The most tokens that a step proposes, by the draft or by the lookup before it."""
        found = self.lookup.num_draft_tokens if self.lookup else 0
        return max(self.num_draft_tokens, found)

    @model_validator(mode="after")
    def _ngram_sizes_are_ordered(self) -> DraftSpec:
        shortest, longest = self.ngram_sizes
        if not 1 <= shortest <= longest:
            raise ValueError("draft.ngram_sizes: expected 1 <= shortest <= longest")
        return self


class VerificationSpec(Section):
    """What decides which drafted tokens are kept; this fixes the guarantee."""

    rule: Rule = Field(
        "greedy",
        description="greedy: temperature 0 only. rejection: sampling, the target's distribution. "
        "sample-match: the same law with drafts that are not drawn. lenient and typical keep more "
        "and change the distribution.",
    )
    lenience: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Of `lenient`: drafts are accepted with target / (lenience x draft).",
    )
    epsilon: float | None = Field(
        None, gt=0, lt=1, description="Of `typical`: accepted above this probability; 0.09."
    )
    delta: float | None = Field(
        None, gt=0, description="Of `typical`: accepted above delta x exp(-entropy); 0.3."
    )
    pin_shapes: bool = Field(
        False,
        description="Run plain decoding and verification in passes of one shape, so that the "
        "target's logits are bitwise the same for every k, beside every other request; checked "
        "when it is built (reference backend only). Plain decoding gets slower.",
    )

    @model_validator(mode="after")
    def _parameters_belong_to_the_rule(self) -> VerificationSpec:
        owners = {"lenience": "lenient", "epsilon": "typical", "delta": "typical"}
        for name, rule in owners.items():
            if getattr(self, name) is not None and self.rule != rule:
                raise ValueError(f"verification.{name} belongs to rule '{rule}'")
        if self.rule == "lenient" and self.lenience is None:
            raise ValueError("verification.rule 'lenient' needs verification.lenience")
        return self

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters that are set, by name."""
        values = {name: getattr(self, name) for name in ("lenience", "epsilon", "delta")}
        return {name: value for name, value in values.items() if value is not None}


class ShapeSpec(Section):
    """Lengths and batch the graphs are made for."""

    max_prompt_tokens: int = Field(1024, ge=1, description="Longest prompt, in tokens.")
    max_total_tokens: int = Field(
        2048,
        ge=2,
        description="Prompt plus output that a request may reach; room for k + 1 is added to it.",
    )
    batch_size: int = Field(1, ge=1, le=1024, description="Requests decoded side by side.")

    @model_validator(mode="after")
    def _prompt_fits(self) -> ShapeSpec:
        if self.max_prompt_tokens > self.max_total_tokens:
            raise ValueError(
                f"shape.max_prompt_tokens {self.max_prompt_tokens} is larger than "
                f"shape.max_total_tokens {self.max_total_tokens}"
            )
        return self


class ReferenceSpec(Section):
    """How the reference backend runs."""

    device: Device = Field("cpu", description="cpu or cuda.")
    dtype: Dtype = Field("float32", description="Type of weights and arithmetic.")
    num_threads: int | None = Field(
        None, ge=1, description="CPU threads; None leaves PyTorch's choice."
    )
    kernels: Literal["auto", "eager"] = Field(
        "auto",
        description="auto: on a CPU kernels that are compiled once a machine, where there is a C++ "
        "compiler; on CUDA passes of few tokens recorded as CUDA graphs. Else, and with eager, "
        "PyTorch's operators.",
    )
    target_weights: Weights = Field(
        "as-dtype",
        description="int8: the target's weights are rounded to int8. That is another model than "
        "the checkpoint, smaller and faster.",
    )
    draft_weights: Weights = Field(
        "as-dtype",
        description="int8: the draft's weights are rounded to int8. It may propose other tokens; "
        "what a lossless rule lets through stays the same.",
    )
    emulate: Literal["nxdi"] | None = Field(
        None,
        description="nxdi: compute what NxDI 0.9 computes, also where that departs from the "
        "textbook, for debugging side by side.",
    )

    @property
    def wants_kernels(self) -> bool:
        """Whether products go through the compiled kernels, where they can be compiled."""
        return self.device == "cpu" and self.kernels == "auto" and self.dtype != "float16"

    @model_validator(mode="after")
    def _int8_is_for_kernels(self) -> ReferenceSpec:
        for name in ("target_weights", "draft_weights"):
            if getattr(self, name) == "int8" and not self.wants_kernels:
                raise ValueError(
                    f"reference.{name}: int8 needs the compiled kernels of a CPU: device = 'cpu', "
                    "kernels = 'auto', dtype 'float32' or 'bfloat16'"
                )
        return self


class BuildSpec(Section):
    """One build: target, draft, verification rule, shapes, and where it runs."""

    target: TargetSpec
    draft: DraftSpec = Field(default_factory=DraftSpec)
    verification: VerificationSpec = Field(default_factory=VerificationSpec)
    shape: ShapeSpec = Field(default_factory=ShapeSpec)
    neuron: NeuronSpec | None = None
    reference: ReferenceSpec = Field(default_factory=ReferenceSpec)
    name: str = Field("build", exclude=True, description="The spec file's name, set on loading.")
    base_directory: Path = Field(
        default_factory=Path.cwd, exclude=True, description="What relative paths are relative to."
    )

    @model_validator(mode="after")
    def _nxdi_can_do_what_is_emulated(self) -> BuildSpec:
        if self.reference.emulate and (faults := emulation_faults(self)):
            raise ValueError("\n  ".join(faults))
        return self

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted at all."""
        return self.draft.method != "none"

    @property
    def num_draft_tokens(self) -> int:
        """The longest proposal of a step, or 0 without a draft."""
        return self.draft.longest if self.speculates else 0

    @property
    def build_directory(self) -> Path:
        """Default home of what is built from this spec: `build/<name>` in the current folder."""
        return Path("build") / self.name
