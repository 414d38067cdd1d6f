"""Every draft of the demo target, as shipped: a public layout, and greedy text stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuron_spec import load_spec, prepare
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.bench.workload import read_workload
from neuron_spec.checkpoints import identify
from neuron_spec.engine import Session
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.preflight import check
from neuron_spec.spec import BuildSpec

ROOT = Path(__file__).parents[2]
CHECKPOINTS = ROOT / "checkpoints"
ROWS = CHECKPOINTS / "smollm2-135m-instruct-eagle/evaluation-prompts.jsonl"
TREE = {"tree": [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]], "num_draft_tokens": 7}
DYNAMIC = {"dynamic_tree": {"depth": 4, "top_k": 4}, "num_draft_tokens": 10}
# Spec -> shapes beside its chain, and the fewest accepted tokens a step that show it is trained.
DRAFTS: dict[str, tuple[list[dict[str, Any]], float]] = {
    "eagle": ([TREE, DYNAMIC], 0.4),
    "eagle3": ([TREE, DYNAMIC], 0.3),
    "medusa": ([TREE], 0.1),
    "model": ([], 0.25),
    "suffix": ([], 0.0),
    "early-exit": ([], 0.0),
}
FAMILIES = {"eagle3": "eagle3", "medusa": "medusa", "draft": "causal-lm"}


def with_shape(spec: BuildSpec, shape: dict[str, Any]) -> BuildSpec:
    sections = spec.model_dump() | {"name": spec.name, "base_directory": spec.base_directory}
    sections["draft"] |= {"tree": (), "dynamic_tree": None, **shape}
    return BuildSpec.model_validate(sections)


@pytest.mark.parametrize("name", DRAFTS)
def test_greedy_text_is_the_same_and_drafts_are_accepted(name: str, tmp_path: Path) -> None:
    chain = load_spec(ROOT / f"compile/smollm2-135m-{name}.cpu.toml")
    shapes, least = DRAFTS[name]
    prepared = prepare(chain, tmp_path / "draft")
    assert [f for f in check(chain, prepared) if f.severity != "info"] == []
    rows = read_workload(ROWS)
    prompts = [row.prompt for row in rows if row.category in ("code", "qa")][:2]
    per_step = []
    for spec in (chain, *(with_shape(chain, shape) for shape in shapes)):
        speculator = open_speculator(spec, prepared.target, prepared.draft)
        session = Session(speculator, ModelTokenizer(prepared.target))
        plain = session.generate_many(prompts, max_new_tokens=32, speculate=False)
        drafted = session.generate_many(prompts, max_new_tokens=32)
        assert [g.token_ids for g in drafted] == [g.token_ids for g in plain]
        counts = AcceptanceCounts()
        for generation in drafted:
            counts.add(generation.acceptance)
        per_step.append(counts.num_accepted / counts.num_steps)
    assert per_step[0] >= least
    assert all(tree >= per_step[0] for tree in per_step[1:])  # a tree holds its best chain


@pytest.mark.parametrize("name", FAMILIES)
def test_a_shipped_draft_is_in_its_public_layout(name: str) -> None:
    folder = CHECKPOINTS / f"smollm2-135m-instruct-{name}"
    identity = identify(folder)
    assert identity.family == FAMILIES[name]
    assert not (identity.missing or identity.unexpected or identity.misshapen)
    assert (folder / "README.md").is_file()


def test_the_shipped_drafts_are_small() -> None:
    folders = [CHECKPOINTS / f"smollm2-135m-instruct-{name}" for name in FAMILIES]
    num_bytes = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    assert num_bytes < 60_000_000
    eagle3 = identify(CHECKPOINTS / "smollm2-135m-instruct-eagle3")
    assert eagle3.config.raw["draft_vocab_size"] <= 8192
    medusa = identify(CHECKPOINTS / "smollm2-135m-instruct-medusa")
    assert len(medusa.names) == 8  # four blocks with biases, no projections
