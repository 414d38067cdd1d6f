"""`neuron-spec bench`: speculation on against off, in turn, in one run, at several loads."""

from __future__ import annotations

from collections.abc import Callable
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
@click.argument("artifact", required=False, type=click.Path(path_type=Path))
@click.option(
    "--off", metavar="ARTIFACT", type=click.Path(path_type=Path),
    help="The target alone, where ARTIFACT cannot switch speculation off.",
)  # fmt: skip
@click.option("--endpoint", metavar="URL", help="An OpenAI-compatible server: http://…/v1[#MODEL].")
@click.option("--model", help="The server's name of the model.  [default: its first]")
@click.option("--off-endpoint", metavar="URL", help="The same model without speculation.")
@click.option("--body", metavar="JSON", help="Fields to add to the endpoint's requests.")
@click.option(
    "--off-body", metavar="JSON",
    help="Fields that switch speculation off for a request, where a server has such.",
)  # fmt: skip
@click.option(
    "--tokenizer", metavar="DIRECTORY", type=click.Path(path_type=Path),
    help="Counts the tokens of a server that tells no usage.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), default=600.0,
    show_default=True, help="Longest silence of an endpoint in seconds.",
)  # fmt: skip
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
    artifact: Path | None, html: Path | None, verdict: Path | None, as_json: bool, **options: Any
) -> None:
    """Measure ARTIFACT, or an endpoint over HTTP, with speculation off and on, in turn, at every
    concurrency.

    Figures come with 95 % intervals; the ratio is what counts. The JSON has everything that
    `compare` and `plan` need. Of an endpoint it has what the server tells: off and on are two
    servers, or one whose requests switch it, as ours do by themselves. The server's key is taken
    from OPENAI_API_KEY.
    """
    from neuron_spec.bench.report import read_verdict
    from neuron_spec.errors import UserError

    if (artifact is None) == (options["endpoint"] is None):
        raise click.UsageError("give either ARTIFACT or --endpoint")

    if html is not None and not html.absolute().parent.is_dir():  # told before the measurement
        raise UserError("no such directory", where=html.parent, mend="make it first")
    told = None if verdict is None else read_verdict(verdict)
    run = _measured(artifact, options)
    if html is not None:
        _write_page(html, run, told)
    if as_json:
        print_json(run)
    else:
        print_run(run)


_REMOTE = ("endpoint", "model", "off_endpoint", "body", "off_body", "tokenizer", "timeout_s")


def _measured(artifact: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """The run that the options ask for."""
    from neuron_spec.artifacts import open_artifact

    remote = {name: options.pop(name) for name in _REMOTE}
    if artifact is None:
        return _bench_endpoint(remote, options)
    if any(remote[name] is not None for name in _REMOTE[:-1]):
        raise click.UsageError("options of an endpoint beside an ARTIFACT")
    return run_bench(open_artifact(artifact), **options)


def _bench_endpoint(remote: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Measure over HTTP; a server's step costs are its own."""
    from neuron_spec.bench.endpoints import open_ways, run_endpoints
    from neuron_spec.bench.load import LoadSettings
    from neuron_spec.bench.slices import rows_of

    if options.pop("peer"):
        raise click.UsageError("--peer runs beside an ARTIFACT")
    if options.pop("off"):
        raise click.UsageError("--off runs beside an ARTIFACT; of an endpoint it is --off-endpoint")
    options.pop("no_steps")
    rows = rows_of(*(options.pop(name) for name in ("prompts", "kinds", "limit")))
    settings = LoadSettings(options.pop("concurrency"), options.pop("repetitions"), options)
    ways = open_ways(remote, rows[0], options)
    with progress_bars() as progress:
        return run_endpoints(ways, rows, settings, progress=progress)


def _write_page(html: Path, run: dict[str, Any], verdict: dict[str, Any] | None) -> None:
    from neuron_spec.bench.plan import plan_of, planned_line
    from neuron_spec.bench.questions import questions_of
    from neuron_spec.bench.report import html_report
    from neuron_spec.errors import storage_errors
    from neuron_spec.files import write_text

    planned = None
    told = [p["acceptance"] for p in run["prompts"] if p["acceptance"]]
    if run["step_costs"] and any(acceptance["num_drafted_tokens"] for acceptance in told):
        plan = plan_of(run)
        line = planned_line(plan, run)
        planned = {**plan.as_dict(), "toml": line, "questions": questions_of(run, plan)}
    with storage_errors(html):
        write_text(html, html_report(run, verdict=verdict, plan=planned))


def run_bench(artifact: Any, *, is_planned: bool = False, **options: Any) -> dict[str, Any]:
    """Measure an open artifact; see `run_artifact`."""
    from neuron_spec.bench.artifacts import Wanted, run_artifact

    names = ("off", "peer", "no_steps", "repetitions", "concurrency", "prompts", "kinds", "limit")
    given = {name: options.pop(name) for name in names if name in options}
    with progress_bars() as progress:
        return run_artifact(
            artifact, Wanted(**given, is_planned=is_planned), options, progress=progress
        )


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
        acceptance = prompt["acceptance"] or {}
        drafted = acceptance.get("num_drafted_tokens")
        table.add_row(
            prompt["kind"],
            _number(prompt["num_output_tokens"], 0),
            _number(acceptance.get("acceptance_rate")),
            _number(acceptance["acceptance_length"] if drafted else None),
            _number(prompt["off_tokens_per_s"], 1),
            _number(prompt["on_tokens_per_s"], 1),
            _number(prompt["ratio"]),
            {True: "yes", False: "no", None: "-"}[prompt["identical"]],
            *([_number(prompt["peer_tokens_per_s"], 1)] if has_peer else []),
        )
    out().print(table)
    _say_together(prompts)


def _say_together(prompts: list[dict[str, Any]]) -> None:
    told = [prompt["acceptance"] for prompt in prompts if prompt["acceptance"]]
    drafted, accepted, steps = (
        sum(acceptance[name] for acceptance in told)
        for name in ("num_drafted_tokens", "num_accepted_tokens", "num_steps")
    )
    if drafted:
        say(
            f"acceptance over all: rate {accepted / drafted:.2f}, length {1 + accepted / steps:.2f}"
        )
    compared = [prompt["identical"] for prompt in prompts if prompt["identical"] is not None]
    if compared:
        say(f"identical: {'yes' if all(compared) else 'no'}")


def print_run(run: dict[str, Any]) -> None:
    """Prompts one by one, then loads, speed-ups, step costs and what to keep in mind."""
    from rich.table import Table

    from neuron_spec.bench.report import shown

    print_prompts(run["prompts"])
    ratios = {(entry["way"], entry["concurrency"]): entry for entry in run["speed_ups"]}
    loads = run["loads"]
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "in\nflight": lambda load: str(load["concurrency"]),
        "\nway": lambda load: load["way"],
        "\ntokens/s": lambda load: shown(load["throughput_tokens_per_s"], 0),
        "\nspeed-up": lambda load: _speed_up(ratios.get((load["way"], load["concurrency"]))),
        "TTFT ms\np50/p90/p99": lambda load: _percentiles(load["ttft_s"], 0),
        "TPOT ms": lambda load: _percentiles(load["tpot_s"], 1),
    }
    if not any(prompt["acceptance"] for prompt in run["prompts"]):
        columns["\nlength"] = lambda load: shown(load["acceptance_length"])
    if any(load["num_failed"] for load in loads):
        columns["\nfailed"] = lambda load: str(load["num_failed"])
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    for load in loads:
        table.add_row(*(cell(load) for cell in columns.values()))
    say("")
    out().print(table)
    for load in loads:
        for kind, count in load["failures"].items():
            say(f"failed {count} times, {load['way']}, {load['concurrency']} in flight: {kind}")
    if run["step_costs"]:
        _print_steps(run["step_costs"])
    for note in run["notes"]:
        say(f"note: {note}")


def _speed_up(entry: dict[str, Any] | None) -> str:
    from neuron_spec.bench.report import shown

    return shown(entry["throughput"]) if entry else ""


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


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
