"""Medusa over a tree: tables, every recorded step with and without the mended cache, logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nxdi_golden as golden
import pytest
import torch

from neuron_spec.backends.reference.nxdi import Medusa, MedusaRun, generate_medusa
from neuron_spec.backends.reference.nxdi.medusa import MedusaTables
from neuron_spec.backends.reference.parallel_heads import MedusaHeads
from neuron_spec.trees import Tree

CASES = ("medusa_kv_persisted", "medusa_as_is")
RUNS = [(case, run) for case in CASES for run in range(3)]
TREE = Tree.from_paths(golden.recorded("medusa_as_is")["medusa_tree"])
Make = Callable[[str], Medusa]


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> MedusaHeads:
    return golden.medusa_heads(tmp_path_factory.mktemp("medusa"))


@pytest.fixture(scope="module")
def make(heads: MedusaHeads) -> Make:
    def make(case: str) -> Medusa:
        return Medusa(
            golden.load_target(),
            heads,
            golden.buckets(TREE.num_nodes),
            tree=TREE,
            keeps_accepted=case == "medusa_kv_persisted",
        )

    return make


def emulated(make: Make, case: str, run: int) -> MedusaRun:
    data = golden.recorded(case)["runs"][run]
    return generate_medusa(
        make(case),
        data["prompt"],
        max_new_tokens=data["max_new_tokens_config"],
        eos_token_id=data["eos_token_id"],
    )


def test_tables() -> None:
    found, expected = MedusaTables.of(TREE), golden.recorded("medusa_as_is")["buffers"]
    assert found.candidate_places.tolist() == expected["tree_indices"]
    assert found.depths.tolist() == expected["medusa_position_ids"]
    assert found.mask.int().tolist() == expected["medusa_attn_mask"]
    assert found.paths.tolist() == expected["retrieve_indices"]


@pytest.mark.parametrize(("case", "run"), RUNS)
def test_tokens_and_counts_of_every_step(make: Make, case: str, run: int) -> None:
    data, found = golden.recorded(case)["runs"][run], emulated(make, case, run)
    assert list(found.sequence) == data["sequence"]
    assert len(found.steps) == len(data["steps"])
    for step, expected in zip(found.steps, data["steps"], strict=True):
        assert as_recorded(step, len(expected["scatter_index"])) == expected


def as_recorded(step: Any, num_nodes: int) -> dict[str, Any]:
    first = int(step.positions[0])
    return {
        "base_token": int(step.nodes[0]),
        "candidates": step.candidates.tolist(),
        "tree_candidates": step.nodes.tolist(),
        "best_candidate": step.path,
        "accept_length": step.num_accepted,
        "target_top1_on_paths": step.target_tokens.tolist(),
        "sequence_len_after": len(step.state.sequence),
        "select_indices": list(step.state.entries),
        "position_ids": step.positions.tolist(),
        "accepted_indices": list(step.gathered),
        "current_length": list(step.moved),
        "scatter_index": list(range(first, first + num_nodes)),
    }


@pytest.mark.parametrize(("case", "run"), RUNS)
def test_logits(make: Make, case: str, run: int) -> None:
    data, expected = golden.recorded(case)["runs"][run], golden.tensors(case)
    medusa = make(case)
    state, logits = medusa.encode(data["prompt"])
    places = {f"r{run}.cte": logits}
    for index in range(3):
        step = medusa.step(state)
        places[f"r{run}.s{index}"], state = step.logits, step.state
    for key, found in places.items():
        names = ["target_logits", *(f"medusa{head}_logits" for head in range(3))]
        for place, name in enumerate(names):
            golden.assert_close(found[..., place, :], expected[f"{key}.{name}"])


def test_token_zero_is_not_counted(make: Make) -> None:
    """Read in NxDI, not recorded: a prompt's length is its number of ids that are not 0."""
    state, _ = make("medusa_as_is").encode([1, 0, 42, 99, 7])
    assert (state.num_nonzero, state.length) == (4, 4)
    after = make("medusa_as_is").step(state).state
    assert after.sequence[:4] == (1, 0, 42, 99)  # the prompt's last token is lost
    assert torch.equal(torch.tensor(after.sequence[4]), state.top[0, 0])


def test_the_eos_id_is_compared_with_a_count(make: Make) -> None:
    """Read in NxDI, not recorded: a run ends when it has as many new tokens as the id says."""
    prompt = list(golden.PROMPTS[0])
    free = generate_medusa(make("medusa_as_is"), prompt, max_new_tokens=40)
    first = len(free.steps[0].emitted)
    stopped = generate_medusa(make("medusa_as_is"), prompt, max_new_tokens=40, eos_token_id=first)
    assert len(stopped.steps) == 1
    eos = free.steps[0].emitted[-1]
    ignored = generate_medusa(make("medusa_as_is"), prompt, max_new_tokens=40, eos_token_id=eos)
    assert eos > 43 and ignored.sequence == free.sequence
