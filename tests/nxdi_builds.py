"""Specs for Neuron over tiny checkpoints: files that the double can be built from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny
import tiny_heads

from neuron_spec.spec import BuildSpec, load_spec

TREE = [[0], [1], [0, 0], [1, 0]]
# What each method needs beside the target; tiny shapes, two prompt and two decoding graphs.
DRAFTS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "eagle": {"method": "eagle", "model": "draft", "num_draft_tokens": 3},
    "eagle-tree": {"method": "eagle", "model": "draft", "tree": TREE},
    "eagle3": {"method": "eagle3", "model": "draft", "num_draft_tokens": 3},
    "fused": {"method": "model", "model": "draft", "num_draft_tokens": 3},
    "unfused": {"method": "model", "model": "draft", "num_draft_tokens": 3},
    "medusa": {"method": "medusa", "model": "draft", "tree": TREE},
    "ngram": {"method": "ngram", "num_draft_tokens": 3},
}
NEURON: dict[str, Any] = {
    "instance": "trn2.3xlarge", "tp_degree": 4,
    "context_encoding_buckets": [32, 64], "token_generation_buckets": [128, 256],
}  # fmt: skip


def write_spec(
    folder: Path, way: str, neuron: dict[str, Any] | None = None, text: str = ""
) -> BuildSpec:
    """A spec of that way through NxDI with its checkpoints, nothing prepared yet.

    Args:
        neuron: laid over the table [neuron].
        text: TOML behind it, as [neuron.config].
    """
    vocab = {"vocab_size": 260}  # a multiple of tp_degree, which some ways need
    tiny.write_target(folder / "target", **vocab, num_hidden_layers=8 if way == "eagle3" else 2)
    if way == "eagle3":
        tiny.write_eagle3(folder / "draft", **vocab)
    elif way.startswith("eagle"):
        tiny.write_eagle(folder / "draft", **vocab)
    elif way == "medusa":
        tiny_heads.write_medusa(folder / "draft", **vocab)
    elif way.endswith("fused"):
        tiny.write_target(folder / "draft", seed=5, num_hidden_layers=1, **vocab)
    path = tiny.write_spec(
        folder / "build.toml",
        text,
        target={"model": "target", "dtype": "float32"},
        draft=DRAFTS[way],
        shape={"max_prompt_tokens": 48, "max_total_tokens": 120},
        neuron={**NEURON, "fused": way != "unfused", **(neuron or {})},
    )
    return load_spec(path)
