"""Several runs of one target: which draft, and how long a one, at which load and kind of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuron_spec.bench.compare import differences
from neuron_spec.bench.plan import plan_of
from neuron_spec.bench.run import Run
from neuron_spec.errors import UserError
from neuron_spec.planner import TOLERANCE


def choice_of(runs: Mapping[str, Run]) -> dict[str, Any]:
    """The draft with the largest expected speed-up at every load that all runs have; and for every
    kind of work, by what was measured at the lowest load.

    Where no draft is worth more than 1 % nothing is drafted.

    Args:
        runs: by name; each on and off in one run, so that speed-ups stand side by side.

    Raises:
        UserError: runs that are not of one target, machine, and workload.
    """
    _check_comparable(runs)
    plans = {name: plan_of(run) for name, run in runs.items()}
    by_load: dict[int, list[dict[str, Any]]] = {}
    for name, plan in plans.items():
        for load in plan.loads:
            row = {
                "run": name,
                "num_draft_tokens": load.best.num_draft_tokens,
                "speed_up": load.best.speed_up.as_dict(),
            }
            by_load.setdefault(load.concurrency, []).append(row)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for name, run in runs.items():
        for kind in run["kinds"]:
            if kind["speed_up"]:
                row = {"run": name, "speed_up": kind["speed_up"]}
                kinds.setdefault(kind["kind"], []).append(row)
    return {
        "loads": [
            {"concurrency": concurrency, **_ranked(rows)}
            for concurrency, rows in sorted(by_load.items())
            if len(rows) == len(runs)
        ],
        "kinds": [{"kind": kind, **_ranked(rows)} for kind, rows in kinds.items()],
    }


def _ranked(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fastest first; `best` is None where nothing is worth drafting."""
    options = sorted(rows, key=lambda row: -row["speed_up"]["value"])
    pays = options[0]["speed_up"]["value"] > 1 + TOLERANCE
    return {"options": options, "best": options[0]["run"] if pays else None}


def _check_comparable(runs: Mapping[str, Run]) -> None:
    (first, one), *others = runs.items()
    for name, other in others:
        if forbidding := differences(one, other)[0]:
            raise UserError(
                f"not comparable with {first}: {forbidding[0]}",
                where=name,
                mend="measure both with the same prompts and options on the same machine",
            )
