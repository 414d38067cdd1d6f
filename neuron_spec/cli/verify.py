"""`neuron-spec verify`: greedy output with speculation on and off, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.common import json_option, out, print_json, progress_bars, say


@click.command(
    "verify",
    short_help="Compare greedy output with speculation on and off.",
    epilog="Example: neuron-spec verify build/my-spec/artifact --prompts prompts.jsonl",
)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="JSONL of prompts.")
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first rows.")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--ignore-eos", is_flag=True, help="Go on past the end-of-sequence token.")
@click.option(
    "--near-tie-margin", type=click.FloatRange(min=0),
    help="Logit distance that rounding may reorder.  [default: by dtype]",
)  # fmt: skip
@json_option
@click.pass_context
def command(
    context: click.Context, /, artifact: Path, prompts: Path, as_json: bool, **options: Any
) -> None:
    """Compare ARTIFACT's greedy output with speculation on and off, token by token.

    At a divergence the target's own logits tell a near-tie (rounding) from a defect. Exit code 1
    if there is a defect.
    """
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.bench.workload import read_workload
    from neuron_spec.engine import open_session
    from neuron_spec.equivalence.identity import NEAR_TIE_MARGINS, compare_greedy

    opened = open_artifact(artifact)
    session = open_session(opened)
    margin = options.pop("near_tie_margin")
    margin = NEAR_TIE_MARGINS[opened.spec.reference.dtype] if margin is None else margin
    rows = read_workload(prompts, limit=options.pop("limit"))
    comparisons = []
    with progress_bars() as progress:
        for index, row in enumerate(rows):
            progress("prompts", index, len(rows))
            comparisons += compare_greedy(session, [row.prompt], near_tie_margin=margin, **options)
    divergences = [c.divergence for c in comparisons if c.divergence is not None]
    num_defects = sum(divergence.kind == "defect" for divergence in divergences)
    if as_json:
        print_json(
            {
                "rule": opened.spec.verification.rule,
                "near_tie_margin": margin,
                "num_prompts": len(comparisons),
                "num_identical": sum(c.is_identical for c in comparisons),
                "num_defects": num_defects,
                "comparisons": [comparison.as_dict() for comparison in comparisons],
            }
        )
    else:
        _print(comparisons, opened.spec.verification.rule, num_defects)
    context.exit(1 if num_defects else 0)


def _print(comparisons: list[Any], rule: str, num_defects: int) -> None:
    from rich.table import Table

    table = Table("prompt", "tokens", "acceptance length", "identical", "divergence", box=None)
    for index, comparison in enumerate(comparisons):
        length, divergence = comparison.speculative.acceptance.length, comparison.divergence
        table.add_row(
            str(index),
            str(len(comparison.plain.token_ids)),
            "-" if length is None else f"{length:.2f}",
            "yes" if divergence is None else "no",
            "" if divergence is None else _explain(divergence),
        )
    out().print(table)
    num_identical = sum(c.is_identical for c in comparisons)
    num_ties = len(comparisons) - num_identical - num_defects
    say(
        f"level 1 (bitwise identity), rule '{rule}': {num_identical} of {len(comparisons)} "
        f"identical, {num_ties} near-tie(s), {num_defects} defect(s)"
    )


def _explain(divergence: Any) -> str:
    margin = "unknown" if divergence.margin is None else f"{divergence.margin:.2e}"
    return (
        f"{divergence.kind} at output position {divergence.position}: plain "
        f"{divergence.plain_token}, speculative {divergence.speculative_token}, margin {margin}"
    )
