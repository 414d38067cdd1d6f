"""Acceptance by depth and rank: what counts as tried, and a real tree counted end to end."""

from __future__ import annotations

import pytest
from conftest import WordTokenizer

from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.bench.ranks import RankCounts, measure_rank_rates
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine import Session
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.errors import UserError
from neuron_spec.spec import BuildSpec
from neuron_spec.trees import Tree

PATHS = [[0], [1], [0, 0], [0, 1], [1, 0]]  # nodes 1 … 5


def test_only_the_children_of_accepted_nodes_were_tried() -> None:
    counts = RankCounts(Tree.from_paths(PATHS))
    for nodes in ((1, 4), (2,), (), (1,)):
        counts.add(nodes)
    assert counts.tried == [[4, 4], [3, 2]]  # [1, 0] once, [0, *] twice
    assert counts.accepted == [[2, 1], [0, 1]]
    rates = counts.rates()
    assert [[rate.value for rate in row] for row in rates] == [[0.5, 0.25], [0, 0.5]]
    assert rates[1][0].num_samples == 3


def test_ranks_that_were_never_tried_are_unknown() -> None:
    counts = RankCounts(Tree.from_paths([[0], [0, 0]]))
    counts.add(())
    assert [len(row) for row in counts.rates()] == [1]


def test_a_tree_of_the_reference_backend_is_counted(spec: BuildSpec) -> None:
    """The target drafts for itself: rank 0 is always right."""
    data = spec.model_dump() | {"name": spec.name, "base_directory": spec.base_directory}
    data["draft"] = {"method": "model", "model": "target", "tree": PATHS}
    own = BuildSpec.model_validate(data)
    directory = spec.base_directory / "target"
    session = Session(open_speculator(own, directory, directory), ModelTokenizer(directory))
    rows = [WorkloadRow("ab", "x"), WorkloadRow("c", "x")]
    rates = measure_rank_rates(session, PATHS, rows, max_new_tokens=12)
    assert [[rate.value for rate in row] for row in rates] == [[1.0, 0.0], [1.0, 0.0]]
    assert rates[0][0].num_samples == rates[1][0].num_samples > 2
    assert session.generate("ab", max_new_tokens=2).token_ids  # the slot is free again


def test_what_cannot_be_counted_is_refused() -> None:
    session = Session(ScriptedSpeculator({(3,): (4, 5, 6)}), WordTokenizer())
    rows = [WorkloadRow("3", "x")]
    with pytest.raises(UserError, match="needs an artifact that drafts a tree"):
        measure_rank_rates(session, [], rows, max_new_tokens=3)
    with pytest.raises(UserError, match="does not tell"):
        measure_rank_rates(session, PATHS, rows, max_new_tokens=3)
    assert session.speculator._running == {}  # type: ignore[attr-defined]
