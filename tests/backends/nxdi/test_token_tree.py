"""EAGLE with a token tree: derived tables, every recorded step of five trees, logits."""

from __future__ import annotations

from functools import cache
from typing import Any

import nxdi_golden as golden
import pytest
import torch

from neuron_spec.backends.reference.nxdi import FusedRun, generate
from neuron_spec.backends.reference.nxdi.token_tree import TokenTree
from neuron_spec.trees import Tree

TREES = ("binary7", "skew", "even6", "even9", "chain5")
RUNS = [(name, run) for name in TREES for run in range(3)]


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = golden.recorded("eagle1_token_tree")["trees"][name]
    return data


def tree(name: str) -> Tree:
    return Tree.from_children(recorded(name)["token_tree_config"])


@cache
def emulated(name: str, run: int) -> FusedRun:
    data = recorded(name)["runs"][run]
    return generate(
        golden.eagle_tree(tree(name)),
        data["prompt"],
        max_length=data["max_length"],
        eos_token_ids=[data["eos_token_id"]],
    )


@pytest.mark.parametrize("name", TREES)
def test_derived_tables(name: str) -> None:
    found, expected = TokenTree(tree(name)), recorded(name)["derived_tree_tensors"]
    assert (found.depth, found.tree.num_nodes) == (expected["depth"], expected["node_nums"])
    assert [len(level) for level in found.levels] == expected["level"]
    for table, key in (
        (found.num_children, "level_child"),
        (found.paths, "path"),
        (found.permutations, "path_permute_mask"),
        (found.cache_places, "cache_scatter_indices"),
        (found.topk_picks, "topk_permute_index"),
        (found.feature_picks[:-1], "draft_hidden_gather_index"),
    ):
        rows = expected[key][: len(table)] if key == "draft_hidden_gather_index" else expected[key]
        assert [list(row) for row in table] == rows, key
    assert found.ancestors.int().tolist() == expected["full_tree_attn_mask"]
    assert list(found.tree.depths) == expected["rotary_position_id_offset"]


@pytest.mark.parametrize(("name", "run"), RUNS)
def test_tokens_and_counts_of_every_step(name: str, run: int) -> None:
    data, found = recorded(name)["runs"][run], emulated(name, run)
    assert list(found.sequence) == data["sequence"]
    assert len(found.steps) == len(data["steps"])
    for step, emitted, expected in zip(found.steps, found.emitted, data["steps"], strict=True):
        assert step.target_tokens[0].tolist() == expected["target_argmax_per_node"]
        assert list(emitted) == expected["emitted"]
        assert step.accepted.tokens[0].tolist() == expected["accepted_tokens_padded"]
        assert step.accepted.next_positions.tolist() == [expected["next_position"]]
        assert step.accepted.next_tokens.tolist() == [expected["next_input_token"]]
        for logits, best in zip(step.draft_logits, expected["draft_topk_per_level"], strict=True):
            width = len(best[0])
            assert logits[0].topk(width, dim=-1).indices.tolist() == best


@pytest.mark.parametrize(("name", "run"), RUNS)
def test_logits(name: str, run: int) -> None:
    expected, compared = golden.tensors("eagle1_token_tree"), 0
    for index, step in enumerate(emulated(name, run).steps):
        prefix = f"{name}.r{run}.s{index}."
        found = {f"draft_logits_level{i}": part for i, part in enumerate(step.draft_logits)}
        found["target_logits"] = step.target_logits
        for key, logits in found.items():
            if prefix + key in expected:
                golden.assert_close(logits[0], expected[prefix + key])
                compared += 1
    assert compared >= sum(key.startswith(f"{name}.r{run}.") for key in expected)


def test_a_chain_as_tree_gives_the_steps_of_the_chain() -> None:
    for run in range(3):
        chain = generate(golden.fused("eagle1"), golden.PROMPTS[run], max_length=48)
        assert emulated("chain5", run).sequence == chain.sequence
        assert emulated("chain5", run).emitted == chain.emitted


def test_a_tree_with_a_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="without a gap"):
        TokenTree(Tree.from_paths([[0], [2]]))


def test_a_node_right_of_a_childless_one_gets_its_neighbours_tokens() -> None:
    """Read in NxDI, not recorded: the rows of nodes without children are not skipped."""
    found = TokenTree(Tree.from_children({"0": ["1", "2", "3"], "1": ["4"], "3": ["5"]}))
    assert found.topk_picks == ((0, 1, 2), (0, 1))  # node 5 would have to take row 2
    assert torch.tensor(found.feature_picks[1]).tolist() == [0, 2]
