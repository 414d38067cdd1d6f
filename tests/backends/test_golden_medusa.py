"""Medusa heads give the logits and the proposals that NxDI's own code recorded.

Recorded is a tree; its leftmost path is the chain that is drafted here.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from neuron_spec.backends.base import Limits
from neuron_spec.backends.decisions import Decisions
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.parallel_heads import MedusaHeads
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.checkpoints.prepare import prepare_draft

GOLDEN = Path(__file__).parents[1] / "golden"
NUM_HEADS = 3
CHAIN = (1, 4, 7)  # places of the paths [0], [0, 0], [0, 0, 0] in the recorded tree
PLACEMENT = Placement(1, 110, torch.float32, torch.device("cpu"))


@cache
def recorded() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((GOLDEN / "medusa_kv_persisted.json").read_text())
    return data


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return load_file(GOLDEN / "medusa_kv_persisted.safetensors")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> MedusaHeads:
    """The recorded heads, prepared for the recorded target."""
    folder = tmp_path_factory.mktemp("medusa")
    shutil.copytree(GOLDEN / "medusa", folder / "published", copy_function=shutil.copyfile)
    stored = load_file(folder / "published/medusa_heads.safetensors")
    torch.save(stored, folder / "published/medusa_heads.pt")
    prepare_draft(folder / "published", GOLDEN / "target", folder / "prepared")
    return MedusaHeads(folder / "prepared", PLACEMENT)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(GOLDEN / "target", PLACEMENT)


RUNS = pytest.mark.parametrize("run", range(len(recorded()["runs"])))


@RUNS
def test_head_logits(
    run: int, heads: MedusaHeads, target: Target, tensors: dict[str, Tensor]
) -> None:
    data = recorded()["runs"][run]
    features = target.hidden(torch.tensor([data["sequence"]]), [0])[1][0]  # [n, hidden]
    compared = 0
    places = {f"r{run}.cte": len(data["prompt"]) - 1}
    places |= {f"r{run}.s{i}": step["position_ids"][0] for i, step in enumerate(data["steps"])}
    for key, position in places.items():
        logits = heads.head_logits(features[position], NUM_HEADS)
        for head in range(NUM_HEADS):
            expected = tensors.get(f"{key}.medusa{head}_logits")
            if expected is not None:
                root = expected.reshape(-1, expected.shape[-1])[0]
                torch.testing.assert_close(logits[head], root, atol=1e-4, rtol=0)
                compared += 1
    assert compared == NUM_HEADS * 4  # the context and three steps


@RUNS
def test_proposals_are_the_leftmost_path(run: int, heads: MedusaHeads, target: Target) -> None:
    data = recorded()["runs"][run]
    drafter, sequence = heads.drafter(), torch.tensor(data["sequence"])
    features = target.hidden(sequence[None], [0])[1][0]
    for step in data["steps"]:
        position = step["position_ids"][0]  # of the base token, the last one committed
        drafter.begin(0, sequence[: position + 1], features[:position])
        recorded_chain = [step["tree_candidates"][place] for place in CHAIN]
        assert drafter.propose(1, NUM_HEADS).tokens[0].tolist() == recorded_chain


@RUNS
def test_a_run_with_them_is_the_recorded_sequence(
    run: int, heads: MedusaHeads, target: Target
) -> None:
    data = recorded()["runs"][run]
    speculator = ReferenceSpeculator(
        target,
        heads.drafter(),
        Decisions("greedy", {}, draws_drafts=False, vocab_size=128),
        limits=Limits(1, 32, 96, NUM_HEADS),
        device=PLACEMENT.device,
    )
    tokens = [*data["prompt"], speculator.prefill(0, data["prompt"]).token]
    num_accepted = 0
    while len(tokens) < len(data["sequence"]):
        result = speculator.step(NUM_HEADS)[0]
        tokens += result.tokens
        num_accepted += result.num_accepted
    assert data["equals_target_alone"] and tokens[: len(data["sequence"])] == data["sequence"]
    assert num_accepted > 0
