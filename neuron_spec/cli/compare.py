"""`neuron-spec compare`: two bench runs side by side, or why they cannot stand side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.common import json_option, out, print_json, say


@click.command(
    "compare",
    short_help="Put two bench runs side by side, or refuse to.",
    epilog="Example: neuron-spec compare before.json after.json",
)
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def command(context: click.Context, /, first: Path, second: Path, as_json: bool) -> None:
    """Compare two runs that `bench --json` wrote: SECOND against FIRST.

    Runs on other targets, machines, workloads or output limits are refused (exit code 2), with
    what differs; drafts, rules and versions may differ and are told.
    """
    from neuron_spec.bench.compare import compare_runs
    from neuron_spec.bench.run import read_run

    result = compare_runs(read_run(first), read_run(second))
    if as_json:
        print_json(result)
    else:
        _print(result)
    context.exit(0 if result["comparable"] else 2)


def _print(result: dict[str, Any]) -> None:
    for line in result["told"]:
        say(f"differs: {line}")
    if not result["comparable"]:
        for line in result["forbidding"]:
            say(f"not comparable: {line}")
        return
    from rich.table import Table

    from neuron_spec.metrics.estimates import Estimate

    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("way", "in flight", "first", "second", "ratio", ""):
        table.add_column(column, no_wrap=True)
    for load in result["loads"]:
        figures = (f"{load[name]['value']:.1f}" for name in ("first", "second"))
        ratio = Estimate(**load["ratio"]).shown()
        table.add_row(load["way"], str(load["concurrency"]), *figures, ratio, load["verdict"])
    out().print(table)
    if not result["loads"]:
        say("nothing in common: no way of decoding at the same number of requests in flight")
