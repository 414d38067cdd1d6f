"""What every format file provides; the modules themselves implement `Format`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from neuron_spec.checkpoints.model_config import ModelConfig, parse_config

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""Tensor name -> shape."""

# Stored by some exporters, rebuilt by every loader: never copied, never unexpected.
DERIVED_SUFFIXES = (".rotary_emb.inv_freq",)

COPY_LM_HEAD = "copy lm_head.weight from the target (its LM head, or its tied embedding)"
FLATTEN_CONFIG = "write config.json flat (NxDI cannot read the nested speculators form)"
ONE_LAYER = "write num_hidden_layers: 1 (the file has one layer)"
COPY_EMBEDDING = "copy embed_tokens.weight from the target"


class Format(Protocol):
    """One checkpoint family."""

    FAMILY: str
    """Its name: the draft method's, or `causal-lm`."""
    DESCRIPTION: str
    """How it is recognised, for people."""

    def matches(self, raw_config: Mapping[str, Any], shapes: Shapes) -> bool:
        """Whether a checkpoint with these tensors is of this family."""

    def parse_config(self, raw: dict[str, Any], directory: Path, found: Shapes) -> ModelConfig:
        """The config that decides the shapes; `found` has canonical names."""

    def canonical_name(self, name: str) -> str:
        """A stored key under the name that NxDI uses."""

    def required_shapes(self, config: ModelConfig, found: Shapes) -> dict[str, Shape]:
        """What every checkpoint of the family holds, by canonical name; `found` where the file
        itself decides (how many heads there are)."""

    def optional_shapes(self, config: ModelConfig, found: Shapes) -> dict[str, Shape]:
        """What it may hold, depending on who trained or prepared it."""

    def preparation(self, config: ModelConfig, found: Shapes) -> tuple[str, ...]:
        """What `prepare` has to do beside renaming, in order; steps that start with "write " are
        about config.json. `found` has canonical names."""

    def refusals(
        self, config: ModelConfig, found: Shapes, target: ModelConfig | None
    ) -> list[tuple[str, str]]:
        """(code, sentence) of everything that no preparation can mend; without a target, only what
        the draft alone shows."""


def parse_decoder(raw: dict[str, Any], directory: Path, found: Shapes) -> ModelConfig:
    """`Format.parse_config` of every family whose config is a decoder's."""
    return parse_config(raw, directory)


def must_equal(config: ModelConfig, target: ModelConfig | None) -> list[tuple[str, str]]:
    """A draft head shares hidden size and vocabulary with its target."""
    if target is None:
        return []
    reasons = {
        "hidden_size": "the draft reads the target's hidden states",
        "vocab_size": "token ids are exchanged raw between draft and target",
    }
    return [
        (field.replace("_", "-"), f"{field}: draft {ours}, target {theirs}; {reason}")
        for field, reason in reasons.items()
        if (ours := getattr(config, field)) != (theirs := getattr(target, field))
    ]


def config_writes(config: ModelConfig, *, fc_bias: bool) -> list[str]:
    """The flags of config.json that the file decides, as preparation steps."""
    steps = []
    if bool(config.raw.get("fc_bias", False)) != fc_bias:
        steps.append(f"write fc_bias: {str(fc_bias).lower()} (NxDI drops fc.bias otherwise)")
    if config.tie_word_embeddings:
        steps.append("write tie_word_embeddings: false (NxDI would overwrite the LM head)")
    return steps
