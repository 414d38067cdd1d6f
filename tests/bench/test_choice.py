"""Which of several drafts is taken, from their runs."""

from __future__ import annotations

import copy
from typing import Any

import bench_runs
import pytest

from neuron_spec.bench.choice import choice_of
from neuron_spec.bench.run import Run, run_of
from neuron_spec.errors import UserError


@pytest.fixture
def eagle() -> Run:
    return run_of(bench_runs.RECORD, bench_runs.ROWS, bench_runs.rounds(), bench_runs.costs())


def with_steps(run: Run, factor: float) -> Run:
    """The same acceptance at another cost of what is drafted, and other speed-ups by kind."""
    other = copy.deepcopy(run)
    other["record"]["draft"] |= {"method": "ngram"}
    for cost in other["step_costs"]:
        if cost["num_draft_tokens"]:
            cost["step_s"] = {
                name: value * factor if name in ("value", "low", "high") else value
                for name, value in cost["step_s"].items()
            }
    for kind in other["kinds"]:
        kind["speed_up"]["value"] /= factor
    return other


def names(choice: dict[str, Any], part: str) -> list[str | None]:
    return [row["best"] for row in choice[part]]


def test_the_cheaper_of_two_drafts_is_taken(eagle: Run) -> None:
    choice = choice_of({"eagle": eagle, "ngram": with_steps(eagle, 0.5)})
    assert names(choice, "loads") == ["ngram", "ngram"]
    assert [load["concurrency"] for load in choice["loads"]] == [1, 2]
    assert names(choice, "kinds") == ["ngram", "ngram"]
    first = choice["loads"][0]["options"]
    assert [row["run"] for row in first] == ["ngram", "eagle"]
    assert first[0]["speed_up"]["value"] > first[1]["speed_up"]["value"] > 1


def test_where_none_pays_none_is_taken(eagle: Run) -> None:
    dear = {"a": with_steps(eagle, 4), "b": with_steps(eagle, 5)}
    choice = choice_of(dear)
    assert names(choice, "loads") == [None, None]
    assert {row["num_draft_tokens"] for load in choice["loads"] for row in load["options"]} == {0}
    assert set(names(choice, "kinds")) == {None}


def test_other_prompts_or_machines_do_not_stand_side_by_side(eagle: Run) -> None:
    other = with_steps(eagle, 0.5)
    other["record"]["machine"] = {"processor": "q", "num_threads": 1}
    with pytest.raises(UserError, match="b: not comparable with a: machine"):
        choice_of({"a": eagle, "b": other})
