"""`tests/benchmarks/peers.py`: its figures, its tables, and its workers on a tiny model."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from peer_engines.engines import LLAMA, OURS, PLAIN, TRANSFORMERS, Engine, all_engines, chosen
from peer_engines.figures import (
    ALL,
    Measured,
    Spread,
    best,
    first_difference,
    lossless_of_ours,
    ratio,
    verdict,
)
from peer_engines.loaders import load_ours
from peer_engines.process import EngineFailedError, EngineMissingError, Worker
from peer_engines.report import is_ours_wrong, report_of
from peer_engines.rounds import opened, take_turns
from peer_engines.tables import remarks, tables

ROOT = Path(__file__).parents[2]
FAMILIES = {OURS: ("plain", "ngram"), TRANSFORMERS: ("plain", "prompt lookup"), LLAMA: ("plain",)}
ENGINES = {
    engine.name: engine
    for family, ways in FAMILIES.items()
    for way in ways
    for engine in [Engine(family, way, like="plain" if way == "plain" else "ngram")]
}
BOUNDS = {
    "weight_bytes": 1000,
    "bytes_per_s": {"median": 50_000.0, "low": 49_000.0, "high": 51_000.0},
    "tokens_per_s": 50.0,
}


class FakeWorker:
    """Takes set seconds for every prompt, and gives set tokens."""

    version = "fake 1"

    def __init__(self, seconds: list[float], tokens: list[list[int]] | None = None) -> None:
        self._seconds, self._tokens = seconds, tokens or [[1, 2, 3, 4], [5, 6, 7, 8]]
        self.asked: list[tuple[int, int]] = []
        self.is_closed = False
        self.fails_at = -1

    def ask(self, prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
        if len(self.asked) == self.fails_at:
            raise EngineFailedError("it broke")
        (prompt,) = prompt_ids
        self.asked.append((prompt, num_tokens))
        return {
            "tokens": self._tokens[prompt][:num_tokens],
            "seconds": self._seconds[prompt],
            "idle_cpu_s": 0.0,
        }

    def close(self) -> None:
        self.is_closed = True


def fakes() -> dict[str, FakeWorker]:
    """Ours is fastest on the second prompt with a draft, whose first output is another one."""
    other = [[1, 2, 9, 4], [5, 6, 7, 8]]
    return {
        "ours plain": FakeWorker([2.0, 2.0]),
        "ours ngram": FakeWorker([1.0, 1.0], other),
        "transformers plain": FakeWorker([4.0, 4.0]),
        "transformers prompt lookup": FakeWorker([5.0, 0.5]),
    }


def run(workers: dict[str, FakeWorker], repetitions: int = 5) -> tuple[Any, dict[str, str]]:
    def start(engine: Engine) -> FakeWorker:
        if engine.name not in workers:
            raise EngineMissingError(engine.family)
        return workers[engine.name]

    with opened(list(ENGINES.values()), start) as loaded:
        return take_turns(
            loaded, [[0], [1]], num_tokens=4, repetitions=repetitions, pause_s=0.0
        )  # fmt: skip


def report(workers: dict[str, FakeWorker], dtype: str = "float32") -> dict[str, Any]:
    results, absent = run(workers)
    record = {
        "model": "m", "dtype": dtype, "threads": 2, "max_new_tokens": 4, "repetitions": 5,
        "prompts": ["a", "b"], "processor": "p", "seconds": 100.0,
    }  # fmt: skip
    return report_of(record, results, absent, BOUNDS)


def shown(data: dict[str, Any]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for table in tables(data):
        console.print(table)
    for remark in remarks(data):
        console.print(remark)
    return console.export_text()


def test_a_spread_is_a_median_with_its_ends() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)


def test_outputs_differ_where_tokens_do_or_one_ends() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_ratios_are_of_the_same_repetition() -> None:
    """A machine that slows down halfway changes both sides, and not their ratio."""
    one = Measured(ENGINES[PLAIN], "1", seconds=[[1.0, 2.0], [10.0, 20.0]])
    other = Measured(ENGINES["transformers plain"], "1", seconds=[[2.0, 2.0], [20.0, 20.0]])
    assert ratio(one, other, 0) == Spread(2.0, 2.0, 2.0)
    assert ratio(one, other, 1) == Spread(1.0, 1.0, 1.0)
    assert ratio(one, other, ALL) == Spread.of([4 / 3, 40 / 30])


def test_all_take_turns_on_every_prompt_after_a_warm_up_that_does_not_count() -> None:
    workers = fakes()
    results, _ = run(workers, repetitions=3)
    for name, worker in workers.items():
        assert [prompt for prompt, _ in worker.asked] == [0, 0, 1, 0, 1, 0, 1]
        assert len(results[name].seconds) == 3
        assert worker.is_closed
    assert results[PLAIN].rate(ALL) == Spread(2.0, 2.0, 2.0)


def test_what_goes_beyond_the_end_is_not_compared() -> None:
    plain = Measured(ENGINES[PLAIN], "1", tokens=[[1, 2, 3]])
    for tokens, place in (([1, 2, 3, 4], None), ([1, 2], 2), ([1, 9, 3, 4], 1)):
        other = Measured(ENGINES["ours ngram"], "1", tokens=[tokens])
        assert other.differs_at(plain, 0) == place
        assert other.is_like(plain, 0) == other.is_like(plain, ALL) == (place is None)


def test_an_output_that_changed_or_differs_is_not_lossless() -> None:
    results, _ = run(fakes())
    names = [[m.engine.name for m in lossless_of_ours(results, p)] for p in (0, 1, ALL)]
    assert names == [[PLAIN], [PLAIN, "ours ngram"], [PLAIN]]
    results["ours ngram"].num_changed = 1
    assert [m.engine.name for m in lossless_of_ours(results, 1)] == [PLAIN]


def test_the_best_has_the_highest_median() -> None:
    results, _ = run(fakes())
    peers = [results["transformers plain"], results["transformers prompt lookup"]]
    assert [best(peers, prompt).engine.way for prompt in (0, 1)] == ["plain", "prompt lookup"]


def test_the_verdict_tells_gains_and_losses() -> None:
    results, _ = run(fakes())
    first, second = verdict(results, 0), verdict(results, 1)
    assert (first["ours"], first["against_plain"]["median"]) == ("ours plain", 1.0)
    assert first["peers"]["transformers"]["ratio"]["median"] == 2.0
    assert (second["ours"], second["against_plain"]["median"]) == ("ours ngram", 2.0)
    assert second["peers"]["transformers"]["best"] == "transformers prompt lookup"
    assert second["peers"]["transformers"]["ratio"]["median"] == 0.5


def test_what_is_not_installed_is_listed_and_no_failure() -> None:
    data = report(fakes(), dtype="bfloat16")
    assert set(data["absent"]) == {"llama.cpp plain"}
    assert "pip install llama-cpp-python" in shown(data)
    assert "llama.cpp" not in data["summary"]["all"]["peers"]
    assert not is_ours_wrong(data)


def test_an_engine_that_fails_halfway_has_no_figures() -> None:
    workers = fakes()
    workers["transformers plain"].fails_at = 3
    data = report(workers, dtype="bfloat16")
    assert data["absent"]["transformers plain"] == "failed: it broke"
    assert "transformers plain" not in [engine["name"] for engine in data["engines"]]
    assert workers["transformers plain"].is_closed
    assert not is_ours_wrong(data)
    workers = fakes()
    workers["ours ngram"].fails_at = 3
    assert is_ours_wrong(report(workers, dtype="bfloat16"))
    workers[PLAIN].fails_at = len(workers[PLAIN].asked)
    with pytest.raises(EngineFailedError, match="it broke"):
        run(workers)


def test_a_different_output_of_ours_is_a_fault_in_float32_alone() -> None:
    assert is_ours_wrong(report(fakes()))
    assert not is_ours_wrong(report(fakes(), dtype="bfloat16"))
    workers = {**fakes(), "ours ngram": FakeWorker([1.0, 1.0])}
    assert not is_ours_wrong(report(workers))


def test_tables_show_rates_differences_ratios_and_the_bound() -> None:
    text = " ".join(shown(report(fakes())).split())
    assert "2.0 [2.0-2.0]" in text  # 4 tokens in 2 s
    assert "ours ngram │ 2 │ same" in text
    assert "ours ngram │ transformers prompt lookup │ 5.00 [5.00-5.00] │ 0.50 [0.50-0.50]" in text
    assert "b │ ngram │ 4.0 │ 2.00 [2.00-2.00] │ 0.50 [0.50-0.50] prompt lookup" in text
    assert "4%" in text  # 2 of 50 tokens/s


def test_every_demo_spec_takes_part_and_plain_cannot_be_left_out() -> None:
    engines = all_engines(ROOT / "compile", Path("drafts"), Path("assistant"))
    specs = {Path(engine.settings["spec"]) for engine in engines if engine.family == OURS}
    assert specs == set((ROOT / "compile").glob("smollm2-135m*.cpu.toml"))
    assert engines[0].name == PLAIN
    assert [e.name for e in chosen(engines, "llama.cpp *")] == [
        PLAIN, "llama.cpp plain", "llama.cpp prompt lookup",
    ]  # fmt: skip
    ways = {engine.way for engine in engines if engine.family == OURS}
    assert all(engine.like in ways for engine in engines)


def test_workers_give_the_same_greedy_tokens_and_do_not_stop(
    tmp_path: Path, target_directory: Path, spec_path: Path
) -> None:
    shared = {"dtype": "float32", "threads": 1, "target": str(target_directory)}
    settings = {
        "ours": {**shared, "spec": str(spec_path), "draft": str(tmp_path / "draft")},
        "transformers": {**shared, "options": {"prompt_lookup_num_tokens": 3}},
    }
    prompt = [5, 6, 5, 6, 5, 6]
    wanted = load_ours(settings["ours"])(prompt, 20)["tokens"]
    config = json.loads((target_directory / "config.json").read_text())
    config["eos_token_id"] = wanted[2]
    (target_directory / "config.json").write_text(json.dumps(config))
    for family in settings:
        worker = Worker(sys.executable, family, settings[family], tmp_path / family)
        answer = worker.ask(prompt, 20)
        worker.close()
        assert answer["seconds"] > 0
        assert answer["tokens"][:20] == wanted


def bare_python(folder: Path, module: str = "") -> str:
    """An interpreter without any package, or with a llama_cpp of that text."""
    if module:
        (folder / "llama_cpp.py").write_text(module)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_an_interpreter_without_the_engine_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineMissingError, match="llama_cpp"):
        Worker(bare_python(tmp_path), "llama.cpp", {"threads": 1}, tmp_path / "log")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise RuntimeError('built for another machine')", "another machine"),
        ("import os; os._exit(3)", "ended with 3"),
    ],
)
def test_an_engine_that_does_not_load_tells_why(tmp_path: Path, module: str, reason: str) -> None:
    with pytest.raises(EngineFailedError, match=reason):
        Worker(bare_python(tmp_path, module), "llama.cpp", {"threads": 1}, tmp_path / "log")
