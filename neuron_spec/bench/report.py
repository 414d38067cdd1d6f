"""One self-contained HTML page of a run: charts, tables, sample outputs, verdicts, the record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from neuron_spec.bench.charts import Chart
from neuron_spec.bench.rounds import OFF
from neuron_spec.bench.run import PERCENTILES, Run
from neuron_spec.errors import UserError
from neuron_spec.metrics.estimates import Estimate, proportion

TEMPLATE = "report.html.jinja"
ON_COLOUR = 1  # as in charts that show "off" before "on"


def html_report(
    run: Run, *, verdict: Mapping[str, Any] | None = None, plan: Mapping[str, Any] | None = None
) -> str:
    """The page.

    Args:
        run: see `run_of`.
        verdict: what `verify --json` wrote, if it is to stand on the page.
        plan: what `plan --json` wrote, likewise.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = shown
    environment.filters["pretty"] = lambda data: json.dumps(data, indent=2, ensure_ascii=False)
    source = files("neuron_spec.bench").joinpath(TEMPLATE).read_text(encoding="utf-8")
    charts = {name: chart.svg() for name, chart in charts_of(run).items()}
    return environment.from_string(source).render(
        run=run,
        charts=charts,
        lead=lead_of(run["record"]),
        verdict=verdict,
        plan=plan,
        percentiles=list(PERCENTILES),
    )


def read_verdict(path: Path) -> dict[str, Any]:
    """What `verify --json` wrote.

    Raises:
        UserError: it is something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot be read: {error}", where=path) from None
    if not isinstance(data, dict) or not {"summary", "claim", "held", "notes"} <= data.keys():
        raise UserError("not a verdict", where=path, mend="name what `verify --json` wrote")
    return data


def shown(data: Mapping[str, Any] | None, digits: int = 2, factor: float = 1.0) -> str:
    """An estimate of a run as text, `-` where there is none."""
    return "-" if data is None else _scaled(data, factor).shown(digits)


def lead_of(record: Mapping[str, Any]) -> str:
    """What was measured, in a line."""
    draft, machine, count = record["draft"], record["machine"], record["workload"]["num_prompts"]
    end = f"{count} prompt(s), {record['created_at']}"
    if "endpoints" in record:
        told = {
            "draft length": draft["num_draft_tokens"],
            "rule": record["rule"]["name"],
            "backend": record["backend"],
        }
        facts = ", ".join(f"{name} {value}" for name, value in told.items())
        return f"an endpoint, measured over HTTP; {facts}; {end}"
    device = machine.get("device_name") or machine.get("instance") or machine["processor"]
    return (
        f"{draft['method']} draft of {draft['num_draft_tokens']} token(s), rule "
        f"{record['rule']['name']}, {record['precision']} on {device}; {end}"
    )


def charts_of(run: Run) -> dict[str, Chart]:
    """The charts of a run by name; an empty one draws nothing."""
    return {
        "speed_up": _speed_up(run),
        "throughput": _throughput(run),
        "acceptance": _acceptance(_told(run)),
        "kinds": _kinds(run["kinds"]),
        "latency": _latency(run["loads"]),
        "steps": _steps(run["step_costs"] or ()),
    }


def _speed_up(run: Run) -> Chart:
    return Chart(
        labels=_loads(run["speed_ups"]),
        series=_by_way(run["speed_ups"], lambda entry: _estimate(entry["throughput"])),
        y_label="speed-up of throughput",
        x_label="requests in flight",
        reference=1.0,
        is_joined=True,
        first_colour=ON_COLOUR,
    )


def _throughput(run: Run) -> Chart:
    return Chart(
        labels=_loads(run["loads"]),
        series=_by_way(run["loads"], lambda load: _estimate(load["throughput_tokens_per_s"])),
        y_label="output tokens/s, all requests",
        x_label="requests in flight",
        is_joined=True,
    )


def _told(run: Run) -> Sequence[Mapping[str, Any]]:
    """Acceptance by kind of work; of all together where single requests do not tell it."""
    if kinds := [kind for kind in run["kinds"] if kind["acceptance"]]:
        return kinds
    whole = [load for load in run["loads"] if load["way"] != OFF and load["acceptance"]]
    return [{"kind": "all", "acceptance": load["acceptance"]} for load in whole[:1]]


def _acceptance(kinds: Sequence[Mapping[str, Any]]) -> Chart:
    """Share of steps whose draft was accepted up to each position."""
    reached = {kind["kind"]: _reached(kind["acceptance"]) for kind in kinds}
    longest = max((len(values) for values in reached.values()), default=0)
    return Chart(
        labels=[str(position + 1) for position in range(longest)],
        series={k: [*v, *[None] * (longest - len(v))] for k, v in reached.items()},
        y_label="share of steps that accept it",
        x_label="position in the draft",
        is_joined=True,
    )


def _reached(acceptance: Mapping[str, Any]) -> list[Estimate]:
    counts = acceptance["steps_by_num_accepted"]
    positions = range(1, len(acceptance["acceptance_rate_by_position"]) + 1)
    return [proportion(sum(counts[n:]), sum(counts)) for n in positions]


def _kinds(kinds: Sequence[Mapping[str, Any]]) -> Chart:
    return Chart(
        labels=[kind["kind"] for kind in kinds],
        series={"on / off": [_estimate(kind["speed_up"]) for kind in kinds]},
        y_label="speed-up of a request",
        x_label="kind of work",
        reference=1.0,
        first_colour=ON_COLOUR,
    )


def _latency(loads: Sequence[Mapping[str, Any]]) -> Chart:
    """Time per output token, at its percentiles, way by way."""
    labels = [f"{name} · {c}" for c in _loads(loads) for name in PERCENTILES]
    series: dict[str, list[Estimate | None]] = {}
    for load in loads:
        told = load["tpot_s"]
        values = [_scaled(told[name], 1e3) if told else None for name in PERCENTILES]
        series.setdefault(load["way"], []).extend(values)
    return Chart(
        labels=labels,
        series=series,
        y_label="ms per output token",
        x_label="percentile · requests in flight",
    )


def _steps(costs: Sequence[Mapping[str, Any]]) -> Chart:
    positions = sorted({cost["num_positions"] for cost in costs})
    series: dict[str, list[Estimate | None]] = {}
    for cost in costs:
        name = f"{cost['concurrency']} in flight"
        series.setdefault(name, []).append(_scaled(cost["step_s"], 1e3))
    return Chart(
        labels=[str(n) for n in positions],
        series=series,
        y_label="ms per step, draft included",
        x_label="positions verified (k + 1)",
        is_joined=True,
    )


def _loads(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(c) for c in sorted({entry["concurrency"] for entry in entries})]


def _by_way(entries: Sequence[Mapping[str, Any]], value: Any) -> dict[str, list[Estimate | None]]:
    series: dict[str, list[Estimate | None]] = {}
    for entry in entries:
        series.setdefault(entry["way"], []).append(value(entry))
    return series


def _estimate(data: Mapping[str, Any] | None) -> Estimate | None:
    return None if data is None else Estimate(**data)


def _scaled(data: Mapping[str, Any], factor: float) -> Estimate:
    ends = [None if data[end] is None else data[end] * factor for end in ("low", "high")]
    return Estimate(
        data["value"] * factor, ends[0], ends[1], data["num_samples"], data["confidence"]
    )
