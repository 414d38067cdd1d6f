"""`neuron-spec bench`: speculation on against off, in turn, in one run, at several loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuron_spec.bench.peers import PEERS
from neuron_spec.cli.common import integers, json_option, out, print_json, progress_bars, say


@click.command(
    "bench",
    short_help="Measure speculation on against off, in turn, in one run.",
    epilog="Example: neuron-spec bench build/my-spec/artifact --prompts prompts.jsonl",
)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--prompts", type=click.Path(path_type=Path),
    help="File of prompts: JSONL, ShareGPT, .txt.  [default: three built-in ones]",
)  # fmt: skip
@click.option("--kinds", help="Built-in prompts of these kinds of work: all, or code,maths,…")
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first rows.")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("-t", "--temperature", type=float, default=0.0, show_default=True, help="0: greedy.")
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--concurrency", callback=integers, default="1", show_default=True,
    help="Requests in flight, such as 1,2,4; at most the artifact's batch size.",
)  # fmt: skip
@click.option("--no-steps", is_flag=True, help="Leave out the cost of a step by draft length.")
@click.option("--peer", type=click.Choice(sorted(PEERS)), help="Measure this beside, in turn.")
@click.option(
    "--html", type=click.Path(path_type=Path), help="Write the report as one page to this file."
)
@click.option(
    "--verdict", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="What `verify --json` wrote, to stand on the page.",
)  # fmt: skip
@json_option
def command(
    artifact: Path, html: Path | None, verdict: Path | None, as_json: bool, **options: Any
) -> None:
    """Measure ARTIFACT with speculation off and on, in turn, at every concurrency.

    Figures come with 95 % intervals; the ratio is what counts. The JSON has everything that
    `compare` and `plan` need.
    """
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.bench.report import read_verdict
    from neuron_spec.errors import UserError

    if html is not None and not html.absolute().parent.is_dir():  # told before the measurement
        raise UserError("no such directory", where=html.parent, mend="make it first")
    told = None if verdict is None else read_verdict(verdict)
    run = run_bench(open_artifact(artifact), **options)
    if html is not None:
        _write_page(html, run, told)
    if as_json:
        print_json(run)
    else:
        print_run(run)


def _write_page(html: Path, run: dict[str, Any], verdict: dict[str, Any] | None) -> None:
    from neuron_spec.bench.plan import plan_of
    from neuron_spec.bench.questions import questions_of
    from neuron_spec.bench.report import html_report
    from neuron_spec.errors import storage_errors
    from neuron_spec.files import write_text

    planned = None
    if run["step_costs"] and any(p["acceptance"]["num_drafted_tokens"] for p in run["prompts"]):
        plan = plan_of(run)
        planned = {**plan.as_dict(), "questions": questions_of(run, plan)}
    with storage_errors(html):
        write_text(html, html_report(run, verdict=verdict, plan=planned))


def run_bench(
    artifact: Any,
    *,
    prompts: Path | None = None,
    kinds: str | None = None,
    limit: int | None = None,
    peer: str | None = None,
    no_steps: bool = False,
    repetitions: int = 3,
    concurrency: tuple[int, ...] = (1,),
    **options: Any,
) -> dict[str, Any]:
    """Measure and put together; `options` are those of a request."""
    from neuron_spec.bench.load import LoadSettings, measure_loads
    from neuron_spec.bench.record import record_of
    from neuron_spec.bench.run import run_of
    from neuron_spec.bench.steps import measure_step_costs
    from neuron_spec.engine import open_session

    rows = rows_of(prompts, kinds, limit)
    session = open_session(artifact)
    measured_peer = None
    if peer:
        reference = artifact.spec.reference
        measured_peer = PEERS[peer](
            artifact.model_directory("target"), dtype=reference.dtype, device=reference.device
        )
    settings = LoadSettings(concurrency, repetitions, options)
    with progress_bars() as progress:
        rounds = measure_loads(session, rows, settings, peer=measured_peer, progress=progress)
        costs = None
        if not no_steps:
            costs = measure_step_costs(session, rows, concurrency, progress=progress)
    return run_of(record_of(artifact, rows, options), rows, rounds, costs)


def rows_of(prompts: Path | None, kinds: str | None, limit: int | None) -> list[Any]:
    """The workload that the options name."""
    from neuron_spec.bench.slices import SLICES
    from neuron_spec.bench.workload import BUILT_IN, read_workload
    from neuron_spec.errors import UserError, nearest

    if prompts and kinds:
        raise click.UsageError("give either --prompts or --kinds")
    if prompts:
        return read_workload(prompts, limit=limit)
    if not kinds:
        return list(BUILT_IN[:limit])
    names = list(SLICES) if kinds == "all" else kinds.split(",")
    for name in names:
        if name not in SLICES:
            raise UserError(f"no such kind of work: {name}", mend=nearest(name, list(SLICES)))
    return [row for name in names for row in SLICES[name]][:limit]


_COLUMNS = (
    "prompt",
    "tokens",
    "acceptance\nrate",
    "acceptance\nlength",
    "tokens/s\noff",
    "tokens/s\non",
    "ratio",
    "identical",
    "peer",
)


def print_on_off(results: list[Any]) -> None:
    """The table that `demo` ends with, and a line over all rows together."""
    print_prompts([{**result.as_dict(), "kind": result.category} for result in results])


def print_prompts(prompts: list[dict[str, Any]]) -> None:
    """One line a prompt, and one over all together."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    has_peer = any(prompt["peer_tokens_per_s"] for prompt in prompts)
    for column in _COLUMNS if has_peer else _COLUMNS[:-1]:
        table.add_column(column, no_wrap=True)
    for prompt in prompts:
        acceptance = prompt["acceptance"]
        table.add_row(
            prompt["kind"],
            str(prompt["num_output_tokens"]),
            _number(acceptance["acceptance_rate"]),
            _number(acceptance["acceptance_length"] if acceptance["num_drafted_tokens"] else None),
            f"{prompt['off_tokens_per_s']:.1f}",
            f"{prompt['on_tokens_per_s']:.1f}",
            f"{prompt['ratio']:.2f}",
            "yes" if prompt["identical"] else "no",
            *([f"{prompt['peer_tokens_per_s']:.1f}"] if has_peer else []),
        )
    out().print(table)
    drafted, accepted, steps = (
        sum(prompt["acceptance"][name] for prompt in prompts)
        for name in ("num_drafted_tokens", "num_accepted_tokens", "num_steps")
    )
    if drafted:
        say(
            f"acceptance over all: rate {accepted / drafted:.2f}, length {1 + accepted / steps:.2f}"
        )
    say(f"identical: {'yes' if all(prompt['identical'] for prompt in prompts) else 'no'}")


def print_run(run: dict[str, Any]) -> None:
    """Prompts one by one, then loads, speed-ups, step costs and what to keep in mind."""
    from rich.table import Table

    from neuron_spec.bench.report import shown

    print_prompts(run["prompts"])
    ratios = {(entry["way"], entry["concurrency"]): entry for entry in run["speed_ups"]}
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in (
        "in\nflight",
        "\nway",
        "\ntokens/s",
        "\nspeed-up",
        "TTFT ms\np50/p90/p99",
        "TPOT ms",
    ):
        table.add_column(column, no_wrap=True)
    for load in run["loads"]:
        ratio = ratios.get((load["way"], load["concurrency"]))
        table.add_row(
            str(load["concurrency"]),
            load["way"],
            shown(load["throughput_tokens_per_s"], 0),
            shown(ratio["throughput"]) if ratio else "",
            _percentiles(load["ttft_s"], 0),
            _percentiles(load["tpot_s"], 1),
        )
    say("")
    out().print(table)
    if run["step_costs"]:
        _print_steps(run["step_costs"])
    for note in run["notes"]:
        say(f"note: {note}")


def _print_steps(costs: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from neuron_spec.bench.report import shown

    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("in flight", "k", "step ms", "draft ms", "verification ms"):
        table.add_column(column, no_wrap=True)
    for cost in costs:
        figures = (shown(cost[name], 2, 1e3) for name in ("step_s", "draft_s", "verify_s"))
        table.add_row(str(cost["concurrency"]), str(cost["num_draft_tokens"]), *figures)
    say("")
    out().print(table)


def _percentiles(figures: dict[str, Any] | None, digits: int) -> str:
    if figures is None:
        return "-"
    return "/".join(f"{figure['value'] * 1e3:.{digits}f}" for figure in figures.values())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
