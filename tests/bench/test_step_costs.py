"""`tests/benchmarks/steps.py`: its arithmetic, its watch, and all its parts on a tiny model."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import steps
from step_costs.memory import predicted_bytes, recorded
from step_costs.opening import WAYS, Model
from step_costs.tables import COLUMNS, tables
from step_costs.timing import overheads, random_ids, started, with_ratios
from step_costs.watching import watching

from neuron_spec.checkpoints.model_config import read_config

SIZES = steps.Sizes((1, 3), (1, 2), (96, 160), (8, 40), 96, 4, 2, 1, 1)


class Sleeper:
    def outer(self) -> str:
        time.sleep(0.01)
        return self.inner()

    def inner(self) -> str:
        time.sleep(0.01)
        return "done"

    def fails(self) -> None:
        time.sleep(0.01)
        raise ValueError("on purpose")


def test_a_watch_counts_nested_calls_once() -> None:
    with watching(((Sleeper, "outer"), (Sleeper, "inner"))) as watch:
        begun = time.perf_counter()
        assert Sleeper().outer() == "done"
        whole = time.perf_counter() - begun
        assert 0.02 <= watch.seconds <= whole
        watch.reset()
        Sleeper().inner()
        assert watch.seconds >= 0.01


def test_a_watch_counts_calls_that_fail_and_goes_on() -> None:
    with watching(((Sleeper, "fails"), (Sleeper, "inner"))) as watch:
        with pytest.raises(ValueError, match="on purpose"):
            Sleeper().fails()
        assert watch.seconds >= 0.01
        Sleeper().inner()
        assert watch.seconds >= 0.02


def test_a_watch_leaves_no_trace() -> None:
    before = Sleeper.inner
    with watching(((Sleeper, "inner"),)):
        assert Sleeper.inner is not before
    assert Sleeper.inner is before


def test_ratios_are_to_the_first_of_the_same_k() -> None:
    figures: list[dict[str, Any]] = [
        {"batch": 2, "k": 4, "step_ms": 30.0},
        {"batch": 1, "k": 4, "step_ms": 20.0},
        {"batch": 1, "k": 0, "step_ms": 5.0},
        {"batch": 2, "k": 0, "step_ms": 6.0},
    ]
    ratios = [(each["k"], each["batch"], each["ratio"]) for each in with_ratios(figures, "batch")]
    assert ratios == [(0, 1, 1.0), (0, 2, 1.2), (4, 1, 1.0), (4, 2, 1.5)]


def test_shorter_random_prompts_begin_longer_ones() -> None:
    assert random_ids(50, 300)[:20] == random_ids(20, 300)
    assert set(random_ids(500, 3)) == {0, 1, 2}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path, "float32", is_tiny=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_started_loop_has_all_requests_past_their_prompts(model: Model, way: str) -> None:
    session = model.session(model.spec(way, batch_size=3, length=64, prompt=16))
    loop = started(session, [[5] * 16, [6] * 9], 3)
    assert (loop.num_running, loop.num_waiting) == (3, 0)
    events = loop.advance()
    assert {getattr(event, "step", None) for event in events} == {1}
    assert {event.request_id for event in events} == {1, 2, 3}  # type: ignore[union-attr]


def test_all_of_a_step_is_either_the_models_or_beyond_them(model: Model) -> None:
    for figures in overheads(model, "eagle", (1, 3), 4):
        beyond = figures["beyond_models_ms"]
        assert 0 < figures["in_loop_ms"] < beyond < figures["step_ms"]
        assert figures["least_beyond_models_ms"] <= beyond


def test_predicted_memory_is_what_the_caches_take(model: Model) -> None:
    spec = model.spec("eagle", batch_size=2, length=50, prompt=10)
    with recorded() as made:
        session = model.session(spec)
    assert session.speculator.limits.batch_size == 2
    caches = [cache for cache, _ in made]
    found = [sum(tensor.nbytes for tensor in (*c.keys, *c.values)) for c in caches]
    prepared = model.prepared(spec)
    assert prepared.draft is not None
    expected = [
        predicted_bytes(read_config(part), 2, caches[0].length, 4)
        for part in (prepared.target, prepared.draft)
    ]
    assert found == expected
    assert expected[0] == 2 * 2 * 2 * 2 * caches[0].length * 8 * 4  # k and v, layers, slots, heads


@pytest.mark.parametrize("part", steps.PARTS)
def test_every_part_measures_and_shows(model: Model, part: str) -> None:
    figures = steps.measured(model, SIZES, part)
    report = {part: figures}
    assert set(COLUMNS) == set(steps.PARTS)
    assert all(set(COLUMNS[part][1]) <= set(each) for each in figures)
    assert json.loads(json.dumps(report)) == report
    console = Console(width=200, record=True, file=io.StringIO())
    (table,) = tables(report)
    console.print(table)
    text = console.export_text()
    assert table.row_count == len(figures) > 1
    assert all(name in text for name in COLUMNS[part][1].values())
