"""Every draft method in every shape it has, on tiny models: specs and speculators for the walks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny
import tiny_heads

from neuron_spec.backends.base import GREEDY, Decoding, Speculator
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.checkpoints.prepare import prepare
from neuron_spec.spec import BuildSpec
from neuron_spec.spec.schema import METHODS_WITH_DYNAMIC_TREE, METHODS_WITH_TREE

TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0]]
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_draft_tokens": 3},
    "tree": {"tree": TREE},
    "dynamic": {"dynamic_tree": {"depth": 3, "top_k": 3}, "num_draft_tokens": 7},
}
METHODS: dict[str, dict[str, Any]] = {
    "model": {"model": "draft"},
    "medusa": {"model": "medusa"},
    "hydra": {"model": "hydra"},
    "hydra++": {"method": "hydra", "model": "hydra++"},
    "eagle": {"model": "eagle"},
    "eagle3": {"model": "eagle3"},
    "mtp": {},
    "early-exit": {"exit_layer": 5},
    "ngram": {"ngram_sizes": [1, 2]},
    "suffix": {"suffix_depth": 8},
    "suffix+eagle": {
        "method": "eagle", "model": "eagle", "suffix_depth": 8, "lookup": {"num_draft_tokens": 5},
    },
    "ngram+model": {
        "method": "model", "model": "draft", "ngram_sizes": [1, 2],
        "lookup": {"method": "ngram", "num_draft_tokens": 2, "shortest": 1},
    },
    "suffix+medusa": {"method": "medusa", "model": "medusa", "lookup": {}},
}  # fmt: skip
_WITH_SHAPE = {
    "chain": METHODS,
    "tree": (*METHODS_WITH_TREE, "hydra++"),
    "dynamic": METHODS_WITH_DYNAMIC_TREE,
}
COMBINATIONS = [
    (method, shape) for method in METHODS for shape in SHAPES if method in _WITH_SHAPE[shape]
]


def write_models(folder: Path, vocab_size: int = 259) -> Path:
    """A target and a draft of every kind for it; the draft model is the target with noise."""
    size: dict[str, Any] = {"vocab_size": vocab_size}
    tiny_heads.write_mtp_target(folder / "target", num_hidden_layers=8, **size)
    tiny.write_target(folder / "draft", seed=5, num_hidden_layers=1, **size)
    tiny.write_eagle(folder / "eagle", **size)
    tiny.write_eagle3(folder / "eagle3", num_rows=vocab_size - vocab_size // 3, **size)
    tiny_heads.write_medusa(folder / "medusa", vocab_size=vocab_size)
    tiny_heads.write_hydra(folder / "hydra", vocab_size=vocab_size)
    tiny_heads.write_hydra(folder / "hydra++", arch="prefix-mlp", vocab_size=vocab_size)
    return folder


def spec_of(
    folder: Path,
    method: str,
    shape: str,
    *,
    rule: dict[str, Any] | None = None,
    batch_size: int = 1,
    **draft: Any,
) -> BuildSpec:
    """The spec of a combination; without a method the target alone."""
    settings = {"method": method, **METHODS[method], **SHAPES[shape]} if method else {}
    return BuildSpec.model_validate(
        {
            "target": {"model": "target"},
            "draft": {**settings, **draft},
            "verification": rule or {"rule": "greedy"},
            "shape": {"max_prompt_tokens": 32, "max_total_tokens": 96, "batch_size": batch_size},
            "name": f"{method}-{shape}",
            "base_directory": folder,
        }
    )


def speculator_of(spec: BuildSpec) -> Speculator:
    """Prepared beside the models, and opened."""
    output = spec.base_directory / "prepared" / spec.name
    prepared = prepare(spec, output)
    return open_speculator(spec, prepared.target, prepared.draft)


@dataclass(frozen=True)
class Asked:
    """One prompt with its options."""

    prompt: Sequence[int]
    decoding: Decoding = GREEDY


def decode(
    speculator: Speculator, asked: Sequence[Asked], num_tokens: int, lengths: Sequence[int] = ()
) -> list[list[int]]:
    """Tokens of every prompt, all side by side.

    Args:
        lengths: k of every step in turn; by default the largest.
    """
    outputs: list[list[int]] = []
    for slot, one in enumerate(asked):
        outputs.append([speculator.prefill(slot, one.prompt, one.decoding).token])
    largest = speculator.limits.num_draft_tokens
    step = 0
    running = set(range(len(asked)))
    while running:
        k = lengths[step % len(lengths)] if lengths else largest
        step += 1
        for result in speculator.step(min(k, largest)):
            outputs[result.slot] += result.tokens
            if len(outputs[result.slot]) >= num_tokens:
                speculator.release(result.slot)
                running.discard(result.slot)
    return [output[:num_tokens] for output in outputs]
