"""Does the plan hold: draft length by load against always on and always off, on the demo model.

    python tests/benchmarks/by_load.py --repetitions 3

A first run, over half of the built-in prompts, gives the plan. A second run, over the other half,
measures off, on and the planned draft lengths in turn at every concurrency, and is compared with
what the plan said: throughput by load over the better of on and off, and the predicted speed-up of
decoding with the measured one, both with the acceptance of the first half and with its own; and the
same by kind of work for whole requests, one at a time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from rich.console import Console
from rich.table import Table

from neuron_spec import compile_model, load_spec, prepare
from neuron_spec.bench.load import LoadSettings, measure_loads
from neuron_spec.bench.plan import plan_of
from neuron_spec.bench.record import record_of
from neuron_spec.bench.run import run_of
from neuron_spec.bench.slices import rows_of
from neuron_spec.bench.steps import measure_step_costs
from neuron_spec.engine import open_session
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.metrics.estimates import Estimate
from neuron_spec.planner import Plan

ROOT = Path(__file__).parents[2]
DEMO_SPEC = ROOT / "compile" / "smollm2-135m-eagle.cpu.toml"
CONCURRENCIES = (1, 2, 4, 8, 16)


def measured(
    session: Any, artifact: Any, rows: Any, tokens: int, concurrencies: Any, repetitions: int
) -> dict[str, Any]:
    wanted = {"max_new_tokens": tokens, "ignore_eos": True}
    settings = LoadSettings(concurrencies, repetitions, wanted)
    rounds = measure_loads(session, rows, settings)
    costs = measure_step_costs(session, rows, CONCURRENCIES)  # a plan is for all loads
    return run_of(record_of(artifact, rows, wanted), rows, rounds, costs)


def throughputs(run: dict[str, Any], concurrency: int) -> dict[str, float]:
    return {
        load["way"]: load["throughput_tokens_per_s"]["value"]
        for load in run["loads"]
        if load["concurrency"] == concurrency
    }


def speed_up(run: dict[str, Any], way: str, concurrency: int) -> dict[str, Any]:
    found: dict[str, Any] = next(
        s for s in run["speed_ups"] if (s["way"], s["concurrency"]) == (way, concurrency)
    )
    return found


def predicted(plan: Plan, concurrency: int, num_draft_tokens: int) -> float:
    (load,) = (load for load in plan.loads if load.concurrency == concurrency)
    (option,) = (o for o in load.options if o.num_draft_tokens == num_draft_tokens)
    return option.speed_up.value


def table_of(run: dict[str, Any], plan: Plan, chosen: DraftLength, largest: int) -> Table:
    own = plan_of(run)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("in flight", "k", "off", "on", "by load", "by load / better", "by load / off",
                   "speed-up on: planned", "with own acceptance", "measured"):  # fmt: skip
        table.add_column(column)
    for concurrency in sorted({load["concurrency"] for load in run["loads"]}):
        rates = throughputs(run, concurrency)
        better = max(rates["off"], rates["on"])
        by_load = rates.get("by-load", rates["on"])  # a plan that is always on
        way = "by-load" if "by-load" in rates else "on"
        against_off = Estimate(**speed_up(run, way, concurrency)["throughput"])
        table.add_row(
            str(concurrency), str(chosen.at(concurrency)),
            *(f"{rate:.1f}" for rate in (rates["off"], rates["on"], by_load)),
            f"{by_load / better:.3f}", against_off.shown(),
            *(f"{predicted(each, concurrency, largest):.2f}" for each in (plan, own)),
            f"{speed_up(run, 'on', concurrency)['decoding']['value']:.2f}",
        )  # fmt: skip
    return table


def kinds_of(run: dict[str, Any], largest: int) -> Table:
    """Which kinds of work pay at one request: whole requests, their prompts included."""
    step_s = {
        cost["num_draft_tokens"]: cost["step_s"]["value"]
        for cost in run["step_costs"]
        if cost["concurrency"] == 1
    }
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for prompt in run["prompts"]:
        acceptance, num_tokens = prompt["acceptance"], prompt["num_output_tokens"]
        steps = acceptance["num_steps"]
        tokens_a_step = (steps + acceptance["num_accepted_tokens"]) / steps
        off_s = num_tokens / prompt["off_tokens_per_s"]
        saved_s = (num_tokens - 1) * (step_s[0] - step_s[largest] / tokens_a_step)
        ratios[prompt["kind"]].append((off_s / (off_s - saved_s), prompt["ratio"]))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("kind of work", "prompts", "speed-up on: plan", "measured", "plan / measured"):
        table.add_column(column)
    for kind, pairs in ratios.items():
        planned, found = (geometric_mean(values) for values in zip(*pairs, strict=True))
        cells = planned, found, planned / found
        table.add_row(kind, str(len(pairs)), *(f"{value:.2f}" for value in cells))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCIES)
    parser.add_argument("--rows", type=int, default=32, help="prompts in all, of all kinds")
    options = parser.parse_args()
    loaded = load_spec(DEMO_SPEC)
    shape = {"max_prompt_tokens": 512, "max_total_tokens": 640, "batch_size": max(CONCURRENCIES)}
    spec = loaded.model_copy(update={"shape": loaded.shape.model_copy(update=shape)})
    rows = rows_of(None, "all", None)
    rows = rows[:: max(1, len(rows) // options.rows)][: options.rows]
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")
        session = open_session(artifact)
        largest = session.speculator.limits.num_draft_tokens
        # Acceptance, time to first token and step costs are all that a plan reads.
        plan = plan_of(measured(session, artifact, rows[::2], options.tokens, (1,), 1))
        console.print(f"{plan.as_toml}, planned over {len(rows[::2])} prompts")
        session.draft_length = DraftLength.by_load(plan.by_load, largest)
        loads = tuple(sorted({1, *options.concurrency}))  # a plan needs single requests
        own = options.tokens, loads, options.repetitions
        run = measured(session, artifact, rows[1::2], *own)
        console.print(table_of(run, plan, session.draft_length, largest))
        console.print(kinds_of(run, largest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
