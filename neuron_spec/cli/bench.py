"""`neuron-spec bench`: speculation on against off, in turn, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuron_spec.bench.peers import PEERS
from neuron_spec.cli.common import json_option, out, print_json, progress_bars, say


@click.command(
    "bench",
    short_help="Measure speculation on against off, in turn, in one run.",
    epilog="Example: neuron-spec bench build/my-spec/artifact --prompts prompts.jsonl",
)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--prompts", type=click.Path(path_type=Path),
    help="JSONL of prompts.  [default: three built-in ones]",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first rows.")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--peer", type=click.Choice(sorted(PEERS)), help="Measure this beside, in turn.")
@json_option
def command(
    artifact: Path,
    prompts: Path | None,
    limit: int | None,
    peer: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure ARTIFACT with speculation off and on, in turn, one request at a time.

    Figures are medians over the repetitions, prompt processing included; the ratio is what counts.
    """
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.bench.measure import measure_on_off
    from neuron_spec.bench.workload import BUILT_IN, read_workload
    from neuron_spec.engine import open_session

    opened = open_artifact(artifact)
    rows = read_workload(prompts, limit=limit) if prompts else BUILT_IN[:limit]
    session = open_session(opened)
    if peer:
        reference = opened.spec.reference
        options["peer"] = PEERS[peer](
            opened.model_directory("target"), dtype=reference.dtype, device=reference.device
        )
    with progress_bars() as progress:
        results = measure_on_off(session, rows, progress=progress, **options)
    if as_json:
        print_json([result.as_dict() for result in results])
    else:
        print_on_off(results)


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
    """The table that `bench` and `demo` end with, and a line over all rows together."""
    from rich.table import Table

    from neuron_spec.bench.measure import total_acceptance

    table = Table(box=None, padding=(0, 1, 0, 0))
    has_peer = any(result.peer_tokens_per_s for result in results)
    for column in _COLUMNS if has_peer else _COLUMNS[:-1]:
        table.add_column(column, no_wrap=True)
    for result in results:
        acceptance = result.on.acceptance
        table.add_row(
            result.category,
            str(len(result.on.token_ids)),
            "-" if acceptance.rate is None else f"{acceptance.rate:.2f}",
            "-" if acceptance.length is None else f"{acceptance.length:.2f}",
            f"{result.off_tokens_per_s:.1f}",
            f"{result.on_tokens_per_s:.1f}",
            f"{result.ratio:.2f}",
            "yes" if result.is_identical else "no",
            *([f"{result.peer_tokens_per_s:.1f}"] if has_peer else []),
        )
    out().print(table)
    total = total_acceptance(results)
    is_identical = all(result.is_identical for result in results)
    if total.rate is not None:
        say(f"acceptance over all: rate {total.rate:.2f}, length {total.length:.2f}")
    say(f"identical: {'yes' if is_identical else 'no'}")
