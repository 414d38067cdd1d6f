"""The spec's table [neuron]: what only the user can decide about a compile for Neuron."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from neuron_spec.spec.section import Section


class NeuronSpec(Section):
    """Where and how the artifact is compiled for Trainium or Inferentia."""

    instance: str = Field(description="EC2 instance type, as trn2.48xlarge.")
    sdk: str = Field(
        "2.29",
        pattern=r"^\d+\.\d+$",
        description="Neuron SDK release; 2.28 is the last one whose NxDI runs on trn1 and inf2.",
    )
    tp_degree: int = Field(1, ge=1, description="Tensor-parallel degree.")
    draft_tp_degree: int | None = Field(
        None, ge=1, description="That of the draft; it divides tp_degree. None: tp_degree."
    )
    logical_nc_config: Literal[1, 2] | None = Field(
        None,
        description="Physical cores that make one logical core. None: 2 on trn2 and trn3, else 1.",
    )
    fused: bool = Field(
        True,
        description="Of `model`: true, one graph drafts and verifies on the device, greedy only; "
        "false, two graphs, and the host verifies by any rule.",
    )
    bucketing: bool = Field(
        True, description="Several graphs for several lengths; false: one of the full length."
    )
    context_encoding_buckets: tuple[int, ...] = Field(
        (), description="Prompt lengths that graphs are made for; empty: powers of two from 128."
    )
    token_generation_buckets: tuple[int, ...] = Field(
        (), description="Cache lengths that graphs are made for; empty: powers of two from 128."
    )
    sample_on_device: bool = Field(
        False,
        description="Of `none`: tokens leave the device instead of logits. Fused graphs always "
        "sample there, unfused ones never.",
    )
    sampling: dict[str, Any] = Field(
        default_factory=dict,
        description="Passed through to OnDeviceSamplingConfig, as global_topk.",
    )
    save_sharded_checkpoint: bool = Field(
        False,
        description="Write every rank's weights beside the graphs: more disk, faster loading.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Passed through to NxDI's NeuronConfig."
    )
    draft_config: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the draft's NeuronConfig that differ."
    )

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """What is passed through, by the table's name."""
        return {
            "config": self.config, "draft_config": self.draft_config, "sampling": self.sampling,
        }  # fmt: skip

    @model_validator(mode="after")
    def _buckets_rise(self) -> NeuronSpec:
        for name in ("context_encoding_buckets", "token_generation_buckets"):
            buckets = getattr(self, name)
            if buckets and not self.bucketing:
                raise ValueError(f"neuron.{name} is given but neuron.bucketing is false")
            if list(buckets) != sorted(set(buckets)) or any(length < 1 for length in buckets):
                raise ValueError(f"neuron.{name}: expected rising lengths")
        return self
