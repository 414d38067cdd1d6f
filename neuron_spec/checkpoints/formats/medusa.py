"""Medusa heads: the authors' two layouts, text-generation-inference's, vLLM's, whole models with
heads (Medusa-2), and what NxDI reads.

Head i is x + SiLU(Wx + b), then a projection to the vocabulary; x is the target's hidden state
after its final norm. Sources: FasterDecoding/Medusa `medusa/model/medusa_model.py` and
`medusa_model_legacy.py`, huggingface/text-generation-inference `layers/medusa.py`,
vllm-project/vllm `models/medusa.py`, NxDI `models/llama/modeling_llama.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.formats import hf
from neuron_spec.checkpoints.formats.base import Shape, Shapes, must_equal
from neuron_spec.checkpoints.model_config import ModelConfig, heads_config
from neuron_spec.checkpoints.model_config import parse_config as parse

FAMILY = "medusa"
DESCRIPTION = "Medusa heads (blocks named 0.0.linear, medusa_head.0.0.linear or blocks.0.layers.0)"

PREPARED_FILE = "medusa_heads.pt"
SHARED_HEAD, TOKEN_MAP = "lm_head.weight", "token_map"
BASE_EMBEDDING = "model.embed_tokens.weight"

# Stored key -> NxDI's, for every layout; a block's Linear is named `linear` by all but vLLM. Two
# digits at most: a head is made for every number up to the highest.
_RENAMES = (
    (re.compile(r"(?:medusa_head\.)?(\d{1,2})\.(\d{1,2})\.(linear\.weight|linear\.bias|weight)"),
     r"medusa_head_\1.\2.\3"),
    (re.compile(r"(?:medusa_heads\.)?blocks\.(\d{1,2})\.layers\.(\d{1,2})\.(weight|bias)"),
     r"medusa_head_\1.\2.linear.\3"),
    (re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d{1,2})\.weight"), r"medusa_head_\1.1.weight"),
    (re.compile(r"medusa_heads\.(lm_head\.weight|token_map)"), r"\1"),
)  # fmt: skip
_BLOCK = re.compile(r"medusa_head_(\d{1,2})\.(\d{1,2})\.linear\.weight")
_HEAD_KEY = re.compile(r"medusa_head_\d{1,2}\.\d{1,2}\.(linear\.weight|linear\.bias|weight)")


def block(head: int, part: str) -> str:
    """Key of the weight or bias of a head's block."""
    return f"medusa_head_{head}.0.linear.{part}"


def projection(head: int) -> str:
    """Key of a head's projection to the vocabulary."""
    return f"medusa_head_{head}.1.weight"


def canonical_name(name: str) -> str:
    """The key under which NxDI looks for it; keys of a base model stay as they are."""
    for pattern, replacement in _RENAMES:
        if match := pattern.fullmatch(name):
            return match.expand(replacement)
    return name


def matches(raw_config: Mapping[str, Any], shapes: Shapes) -> bool:
    """A square block of head 0, under any of its names."""
    canonical = {canonical_name(name): shape for name, shape in shapes.items()}
    return len(canonical.get(block(0, "weight"), ())) == 2


def parse_config(raw: dict[str, Any], directory: Path, found: Shapes) -> ModelConfig:
    """The base model's config where it is in the files; else sizes from the tensors."""
    if has_base(found):
        return parse(raw, directory)
    hidden = found[block(0, "weight")][0]
    rows = found.get(SHARED_HEAD, found.get(projection(0), (0,)))[:1]
    vocab = raw.get("vocab_size") if TOKEN_MAP in found else sum(rows)
    return heads_config(
        raw, FAMILY, hidden_size=hidden, vocab_size=vocab if type(vocab) is int else 0
    )


def num_heads(found: Shapes) -> int:
    """Counted from the tensors: published configs name another number than their files hold
    (FasterDecoding/Medusa `medusa_model.py` overrides it)."""
    return 1 + max(
        (int(match[1]) for name in found if (match := _BLOCK.fullmatch(name))), default=-1
    )


def has_base(found: Shapes) -> bool:
    """Whether the base model is in the same files: Medusa-2, whose base is tuned with its heads."""
    return BASE_EMBEDDING in found


def shares_head(config: ModelConfig, found: Shapes) -> bool:
    """One projection for all heads in the file: vLLM's `original_lm_head`."""
    if has_base(found):
        return False
    is_flagged = bool(config.raw.get("original_lm_head"))
    return SHARED_HEAD in found or (is_flagged and projection(0) in found)


def has_projections(found: Shapes) -> bool:
    """Whether heads have projections of their own; else they use the target's LM head."""
    return any(_HEAD_KEY.fullmatch(name) and ".linear." not in name for name in found)


def required_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """A block a head, a projection a head where any has one, and the base where it is there."""
    hidden, heads = config.hidden_size, range(num_heads(found))
    shapes: dict[str, Shape] = {block(head, "weight"): (hidden, hidden) for head in heads}
    if has_projections(found) and not shares_head(config, found) and num_layers(found) == 1:
        shapes |= {projection(head): (_num_rows(config, found), hidden) for head in heads}
    return {**hf.required_shapes(config, found), **shapes} if has_base(found) else shapes


def optional_shapes(config: ModelConfig, found: Shapes) -> dict[str, Shape]:
    """Biases, what heads share, vLLM's vocabulary map; further blocks are refused by name."""
    hidden, rows = config.hidden_size, _num_rows(config, found)
    heads = range(num_heads(found))
    shapes: dict[str, Shape] = {block(head, "bias"): (hidden,) for head in heads}
    shapes |= {projection(head): (rows, hidden) for head in heads}
    shapes |= {TOKEN_MAP: (rows,)}
    if num_layers(found) > 1:
        shapes |= {name: found[name] for name in found if _HEAD_KEY.fullmatch(name)}
    if has_base(found):
        return {**hf.optional_shapes(config, found), **shapes}
    return {**shapes, SHARED_HEAD: (rows, hidden)}


def num_layers(found: Shapes) -> int:
    """Blocks of head 0."""
    layers = [int(m[2]) for name in found if (m := _BLOCK.fullmatch(name)) and m[1] == "0"]
    return 1 + max(layers, default=0)


def preparation(config: ModelConfig, found: Shapes) -> tuple[str, ...]:
    """One file of NxDI's keys in a folder that holds the target too."""
    return tuple(_steps(config, found))


def _steps(config: ModelConfig, found: Shapes) -> Iterator[str]:
    if has_base(found):
        yield f"split the heads off the base model, into {PREPARED_FILE}"
    if shares_head(config, found):
        yield "give every head the projection that they share"
    elif not has_projections(found):
        yield "copy the target's LM head as the projection that the heads share"
    if TOKEN_MAP in found:
        yield "widen the projections to the target's vocabulary by token_map (NxDI has none)"
    if any(block(head, "bias") not in found for head in range(num_heads(found))):
        yield "add zero biases (NxDI's blocks have one)"


def refusals(
    config: ModelConfig, found: Shapes, target: ModelConfig | None
) -> list[tuple[str, str]]:
    """Heads of another target, or of more blocks than NxDI computes."""
    faults = []
    if num_layers(found) > 1:
        faults.append(
            ("layers", f"{num_layers(found)} blocks a head: NxDI has exactly one, and two cannot "
             "be folded into one")
        )  # fmt: skip
    rows = config.raw.get("truncated_vocab_size")
    is_truncated = type(rows) is int and rows < (config.raw.get("vocab_size") or rows)
    if is_truncated and TOKEN_MAP not in found:
        faults.append(
            ("vocabulary-map", f"truncated_vocab_size {rows}, but no token_map says which tokens")
        )
    unequal = dict(must_equal(config, target))
    if config.vocab_size == 0:  # nothing in the file depends on the vocabulary
        unequal.pop("vocab-size", None)
    return [*faults, *unequal.items()]


def _num_rows(config: ModelConfig, found: Shapes) -> int:
    """Rows of a projection as stored."""
    if TOKEN_MAP in found:
        return sum(found[TOKEN_MAP][:1])
    return config.vocab_size
