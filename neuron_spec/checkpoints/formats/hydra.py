"""Hydra and Hydra++ heads (zankner/Hydra); NxDI has no class for them, the reference backend has.

Head i reads the target's hidden state beside the embeddings of the i + 1 tokens after it:
res_connection(x) + SiLU(linear(x)), further blocks, then a projection with a bias. Hydra++ runs the
hidden states through one Llama layer with a cache of its own first. Sources:
`hydra/model/hydra_heads/mlp_head.py` and `prefix_mlp_head.py`, `hydra/model/hydra_model.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.formats.base import COPY_EMBEDDING, Shape, Shapes, must_equal
from neuron_spec.checkpoints.formats.eagle import EMBEDDING
from neuron_spec.checkpoints.formats.hf import layer_shapes
from neuron_spec.checkpoints.model_config import ModelConfig, heads_config

FAMILY = "hydra"
DESCRIPTION = "Hydra heads (hydra_mlp.* and hydra_lm_head.*)"

MLP, PREFIX_MLP = "mlp", "prefix-mlp"
ARCHITECTURES = (MLP, PREFIX_MLP)
PREFIX = "prefix_embeding_layer."  # spelt so in every file
PREFIX_LAYER, PREFIX_NORM = f"{PREFIX}layers.0.", f"{PREFIX}norm.weight"
# Copies of the target's embedding that the authors' modules register; only the first is used.
UNUSED = ("input_embed_fn.weight", f"{PREFIX}embed_tokens.weight")
_BLOCK = re.compile(r"hydra_mlp\.(\d{1,2})\.(\d{1,2})\.linear\.weight")


def architecture(raw: Mapping[str, Any]) -> str:
    """`hydra_head_arch`, with the authors' default."""
    return str(raw.get("hydra_head_arch", MLP))


def is_grounded(raw: Mapping[str, Any]) -> bool:
    """Whether heads read the tokens drafted before them, which is what Hydra is about."""
    return bool(raw.get("grounded_heads", False))


def block(arch: str, head: int, layer: int) -> str:
    """Prefix of a block's keys; in Hydra++ every second place is a dropout."""
    return f"hydra_mlp.{head}.{layer if arch == MLP else 2 * layer + 1}."


def projection(arch: str, head: int) -> str:
    """Prefix of a projection's keys."""
    return f"hydra_lm_head.{head}." if arch == MLP else f"hydra_lm_head.{head}.1."


def num_heads(found: Shapes) -> int:
    """Counted from the tensors."""
    return 1 + max((head for head, _ in _blocks(found)), default=-1)


def num_layers(arch: str, found: Shapes) -> int:
    """Blocks a head; the authors repeat one block, so that all after the first are the same."""
    places = [place for head, place in _blocks(found) if head == 0]
    last = max(places, default=0)
    return 1 + (last if arch == MLP else last // 2)


def _blocks(found: Shapes) -> list[tuple[int, int]]:
    matches_ = (_BLOCK.fullmatch(name) for name in found)
    return [(int(match[1]), int(match[2])) for match in matches_ if match]


def matches(raw_config: Mapping[str, Any], shapes: Shapes) -> bool:
    """Keys of a Hydra head, or a config that names one."""
    return "hydra_head_arch" in raw_config or bool(_blocks(shapes))


def parse_config(raw: dict[str, Any], directory: Path, found: Shapes) -> ModelConfig:
    """Sizes from the tensors: published configs name the number of heads alone."""
    arch = architecture(raw)
    rows = found.get(f"{block(arch, 0, 0)}linear.weight", ())
    vocab = found.get(f"{projection(arch, 0)}weight", ())
    return heads_config(raw, FAMILY, hidden_size=sum(rows[:1]), vocab_size=sum(vocab[:1]))


def canonical_name(name: str) -> str:
    """Keys are used as they are: there is no other program to please."""
    return name


def required_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """Blocks and projections of every head; the prefix layer's shapes are checked by its target."""
    arch, hidden, vocab = architecture(config.raw), config.hidden_size, config.vocab_size
    if arch not in ARCHITECTURES:
        return {}
    shapes: dict[str, Shape] = {}
    for head in range(num_heads(found)):
        width = (head + 2) * hidden if is_grounded(config.raw) else hidden
        parts = ("linear", "res_connection") if is_grounded(config.raw) else ("linear",)
        for part in parts:
            shapes[f"{block(arch, head, 0)}{part}.weight"] = (hidden, width)
            shapes[f"{block(arch, head, 0)}{part}.bias"] = (hidden,)
        for layer in range(1, num_layers(arch, found)):
            shapes[f"{block(arch, head, layer)}linear.weight"] = (hidden, hidden)
            shapes[f"{block(arch, head, layer)}linear.bias"] = (hidden,)
        shapes[f"{projection(arch, head)}weight"] = (vocab, hidden)
        shapes[f"{projection(arch, head)}bias"] = (vocab,)
    if arch == PREFIX_MLP:
        shapes[PREFIX_NORM] = (hidden,)
    return shapes


def optional_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """The embedding, the authors' copies of it, and whatever lies under the prefix layer."""
    shape = (config.vocab_size, config.hidden_size)
    shapes = dict.fromkeys((EMBEDDING, *UNUSED), shape)
    is_known = architecture(config.raw) in ARCHITECTURES
    own = {name: found[name] for name in found if not is_known or name.startswith(PREFIX_LAYER)}
    return {**shapes, **own}


def preparation(config: ModelConfig, found: Shapes) -> tuple[str, ...]:
    """The target's embedding, which the heads read."""
    return () if EMBEDDING in found else (COPY_EMBEDDING,)


def refusals(
    config: ModelConfig, found: Shapes, target: ModelConfig | None
) -> list[tuple[str, str]]:
    """Variants that are not computed here, or another target's heads."""
    raw, arch = config.raw, architecture(config.raw)
    if arch not in ARCHITECTURES:
        known = " or ".join(ARCHITECTURES)
        return [("architecture", f"hydra_head_arch is {arch!r}; computed is {known}")]
    faults = []
    if arch == PREFIX_MLP and not is_grounded(raw):
        faults.append(
            ("grounded-heads", "grounded_heads is false with prefix-mlp: the authors' training and "
             "their decoding feed such heads different states")
        )  # fmt: skip
    if offset := raw.get("hidden_state_offset", 0):
        faults.append(
            ("hidden-state-offset", f"hidden_state_offset is {offset}; computed is 0, the state "
             "after the final norm")
        )  # fmt: skip
    if arch == PREFIX_MLP and target:
        faults += _prefix_faults(found, target)
    return [*faults, *must_equal(config, target)]


def _prefix_faults(found: Shapes, target: ModelConfig) -> list[tuple[str, str]]:
    """The prefix layer is one layer of the target's kind."""
    return [
        ("prefix-layer", f"{name}: found {list(found.get(name, ()))}, expected {list(shape)} by "
         "the target's config.json")
        for name, shape in layer_shapes(target, PREFIX_LAYER).items()
        if found.get(name) != shape
    ]  # fmt: skip
