"""A small bench run as data, for the tests of what is made of it."""

from __future__ import annotations

from typing import Any

from neuron_spec.bench.rounds import Round, Rounds, Served
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine.events import Timing
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.metrics.costs import CostCurve, StepCost
from neuron_spec.metrics.estimates import Estimate

RECORD: dict[str, Any] = {
    "created_at": "2026-01-01",
    "neuron_spec_version": "1",
    "artifact": {"name": "a <b>", "fingerprint": "f"},
    "target": {"source": "t", "sha256": {"w": "1"}},
    "draft": {"method": "eagle", "num_draft_tokens": 2, "tree": None, "dynamic_tree": None},
    "rule": {"name": "greedy"},
    "claims": [{"level": "bitwise identity", "status": "stated", "source": "s"}],
    "backend": "reference",
    "libraries": {"torch": "2"},
    "shape": {"batch_size": 2},
    "precision": "float32",
    "machine": {"processor": "p", "num_threads": 1},
    "workload": {"num_prompts": 2, "sha256": "w", "kinds": ["code"]},
    "options": {"max_new_tokens": 11},
}
ROWS = [WorkloadRow("1", "code"), WorkloadRow("2", "chat")]


def served(row: int, total_s: float, steps: list[int], text: str = "<x>") -> Served:
    acceptance = AcceptanceCounts()
    for accepted in steps:
        acceptance.add_step(2, accepted)
    tokens = tuple(range(11))
    timing = Timing(0.0, 0.1 * total_s, total_s)
    return Served(row, tokens, text, ((text, "accepted"),), acceptance, timing)


def rounds() -> Rounds:
    """Two rows, twice, at 1 and 2 in flight: on takes half the time of off, less in the second."""
    result = Rounds()
    for repetition, factor in ((0, 1.0), (1, 1.1)):
        for concurrency in (1, 2):
            off = (served(0, 2.0 * factor, []), served(1, 4.0 * factor, []))
            on = (served(0, 1.0 * factor, [2, 2, 0]), served(1, 2.0 * factor, [0, 1]))
            result.rounds.append(Round("off", concurrency, repetition, 6.0 * factor, off))
            result.rounds.append(Round("on", concurrency, repetition, 3.0 * factor**2, on))
    return result


def costs() -> CostCurve:
    def estimate(value: float) -> Estimate:
        return Estimate(value, value * 0.99, value * 1.01, 20)

    return CostCurve(
        tuple(
            StepCost(c, k, estimate(0.1 * (1 + 0.2 * k * c)), estimate(0.01), estimate(0.09))
            for c in (1, 2)
            for k in range(3)
        )
    )
