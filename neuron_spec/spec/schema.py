"""The build spec as data: every field with its type, bounds and a description that teaches.

A spec is frozen once loaded. Unknown keys are errors (see `load.py` for how they are told).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

DraftMethod = Literal["none", "model", "eagle", "eagle3", "ngram"]
Rule = Literal["greedy"]
Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["cpu", "cuda"]

DRAFT_METHODS: tuple[str, ...] = get_args(DraftMethod)
RULES: tuple[str, ...] = get_args(Rule)
METHODS_WITHOUT_MODEL = ("none", "ngram")


class Section(BaseModel):
    """A table of the spec: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class TargetSpec(Section):
    """The model whose output counts."""

    model: str = Field(
        description="Directory (relative to the spec file), hub id, or demo:smollm2-135m-instruct."
    )
    dtype: Dtype = Field("bfloat16", description="Type of weights and arithmetic on Neuron.")


class DraftSpec(Section):
    """Whatever proposes tokens."""

    method: DraftMethod = Field("none", description="How tokens are proposed.")
    model: str | None = Field(
        None, description="Directory or hub id of the draft checkpoint, as published or prepared."
    )
    num_draft_tokens: int = Field(
        4, ge=1, le=31, description="Draft length k; the target scores k + 1 positions a step."
    )
    ngram_sizes: tuple[int, int] = Field(
        (1, 3), description="Shortest and longest suffix that `ngram` looks up, in tokens."
    )

    @model_validator(mode="after")
    def _method_and_model_agree(self) -> DraftSpec:
        takes_model = self.method not in METHODS_WITHOUT_MODEL
        if self.model is not None and not takes_model:
            raise ValueError(f"draft.model is given but draft.method is '{self.method}'")
        if self.model is None and takes_model:
            raise ValueError(f"draft.method '{self.method}' needs draft.model")
        return self

    @model_validator(mode="after")
    def _ngram_sizes_are_ordered(self) -> DraftSpec:
        shortest, longest = self.ngram_sizes
        if not 1 <= shortest <= longest:
            raise ValueError("draft.ngram_sizes: expected 1 <= shortest <= longest")
        return self


class VerificationSpec(Section):
    """What decides which drafted tokens are kept; this fixes the guarantee."""

    rule: Rule = Field("greedy", description="Verification rule.")


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


class NeuronSpec(Section):
    """Where and how the artifact is compiled for Trainium or Inferentia."""

    instance: str = Field(description="EC2 instance type, as trn2.48xlarge.")
    tp_degree: int = Field(1, ge=1, description="Tensor-parallel degree.")
    config: dict[str, Any] = Field(
        default_factory=dict, description="Passed through to NxDI's NeuronConfig."
    )


class ReferenceSpec(Section):
    """How the reference backend runs."""

    device: Device = Field("cpu", description="cpu or cuda.")
    dtype: Dtype = Field("float32", description="Type of weights and arithmetic.")
    num_threads: int | None = Field(
        None, ge=1, description="CPU threads; None leaves PyTorch's choice."
    )


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

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted at all."""
        return self.draft.method != "none"

    @property
    def num_draft_tokens(self) -> int:
        """k, or 0 without a draft."""
        return self.draft.num_draft_tokens if self.speculates else 0

    @property
    def build_directory(self) -> Path:
        """Default home of what is built from this spec: `build/<name>` in the current folder."""
        return Path("build") / self.name
