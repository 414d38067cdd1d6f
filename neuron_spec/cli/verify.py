"""`neuron-spec verify`: does speculation keep what its rule promises, on your own prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.common import json_option, out, plain, print_json, progress_bars, say


@click.command(
    "verify",
    short_help="Test that output with speculation keeps its promise.",
    epilog="Example: neuron-spec verify build/my-spec/artifact --prompts prompts.jsonl",
)
@click.argument("candidate", metavar="ARTIFACT")
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="File of prompts.")
@click.option(
    "--against", metavar="OTHER",
    help="An artifact, spec.toml or http://…/v1#model instead of ARTIFACT without speculation.",
)  # fmt: skip
@click.option("--body", metavar="JSON", help="Fields to add to ARTIFACT's requests: an endpoint's.")
@click.option("--against-body", metavar="JSON", help="The same for OTHER, or for speculation off.")
@click.option(
    "--level", type=click.IntRange(1, 3),
    help="1 identity, 2 distribution, 3 quality.  [default: the strongest that the rule states]",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first rows.")
@click.option(
    "-n", "--max-new-tokens", type=click.IntRange(min=1),
    help="Output tokens.  [default: 128; 8 at level 2]",
)  # fmt: skip
@click.option("--ignore-eos", is_flag=True, help="Go on past the end-of-sequence token.")
@click.option(
    "--near-tie-margin", type=click.FloatRange(min=0),
    help="Level 1: logit distance that rounding may reorder.  [default: by dtype]",
)  # fmt: skip
@click.option(
    "-t", "--temperature", type=click.FloatRange(min=0),
    help="0 is greedy.  [default: 0 for the greedy rule and at level 1, sample-match apart; 1]",
)  # fmt: skip
@click.option(
    "--samples", type=click.IntRange(min=1),
    help="Outputs a prompt and side.  [default: 400 at level 2, 1 at level 3]",
)  # fmt: skip
@click.option(
    "--significance", type=click.FloatRange(0, 0.5, min_open=True), default=0.01,
    show_default=True, help="Level 2: chance to call equal systems different.",
)  # fmt: skip
@click.option(
    "--power", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.8,
    show_default=True, help="Level 2: of what is proposed and said to be found.",
)  # fmt: skip
@click.option(
    "--wanted-difference", type=click.FloatRange(0, 1, min_open=True), default=0.05,
    show_default=True, help="Level 2: total variation to propose a sample size for.",
)  # fmt: skip
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME[=MARGIN]",
    help="Level 3: length, log-likelihood, exact-match or module:function=MARGIN; often.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the samples.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    candidate: str,
    against: str | None,
    prompts: Path,
    body: str | None,
    against_body: str | None,
    limit: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare ARTIFACT with speculation on and off, or with OTHER.

    Level 1 compares output token by token, greedy, or with rule sample-match sampled with the same
    seeds; at a divergence the target's logits tell a near-tie (rounding) from a defect. Level 2
    tests sampled outputs for a difference of their distributions. Level 3 compares metrics within a
    margin. Exit code 0 if the level held, 1 if not, 2 for bad input.
    """
    from neuron_spec.bench.workload import read_workload
    from neuron_spec.client import extra_fields
    from neuron_spec.equivalence.opening import open_pair
    from neuron_spec.equivalence.verdict import strongest_level

    rows = read_workload(prompts, limit=limit)
    pair = open_pair(
        candidate, against, extra=extra_fields(body), against_extra=extra_fields(against_body)
    )
    spec = pair[1].spec  # what an endpoint promises is not known
    has_seeds = all(opened.session for opened in pair)
    strongest = strongest_level(spec.verification, has_seeds=has_seeds) if spec else 1
    level = options.pop("level") or strongest
    if options["temperature"] is None:
        named = spec.verification.rule if spec else "greedy"
        is_greedy = named == "greedy" or (level == 1 and named != "sample-match")
        options["temperature"] = 0.0 if is_greedy and level != 2 else 1.0
    if level == 1 and options["temperature"] and not has_seeds:
        raise click.UsageError("sampled output is compared by seeds, which need two ARTIFACTs")
    verdict, details = _LEVELS[level](pair, rows, spec, options)
    if as_json:
        systems = {"reference": pair[0].system.name, "candidate": pair[1].system.name}
        rule = spec.verification.rule if spec else None
        print_json({**verdict.as_dict(), "rule": rule, "systems": systems, **details})
    else:
        _print(verdict, spec, details)
    context.exit(0 if verdict.held else 1)


def _identity(pair: Any, rows: list[Any], spec: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    from neuron_spec.equivalence.identity import NEAR_TIE_MARGINS, compare_systems
    from neuron_spec.equivalence.ties import Seeded
    from neuron_spec.equivalence.verdict import verdict_on_identity

    margin, temperature = options["near_tie_margin"], options["temperature"]
    if margin is None:  # the coarser of both; an endpoint's type is not known
        dtypes = [opened.spec.reference.dtype if opened.spec else "bfloat16" for opened in pair]
        margin = max(NEAR_TIE_MARGINS[dtype] for dtype in dtypes)
    seeds = [
        Seeded(temperature, options["seed"] + place) if temperature else None
        for place in range(len(rows))
    ]
    comparisons: list[Any] = []
    with progress_bars() as progress:
        for index, row in enumerate(rows):
            progress("prompts", index, len(rows))
            comparisons += compare_systems(
                pair[0].system,
                pair[1].system,
                [row.prompt],
                max_new_tokens=options["max_new_tokens"] or 128,
                near_tie_margin=margin,
                ignore_eos=options["ignore_eos"],
                seeded=seeds[index],
            )
    verification = spec.verification if spec else None
    verdict = verdict_on_identity(comparisons, verification, seeded=seeds[0])
    details = {
        "temperature": temperature,
        "near_tie_margin": margin,
        "num_prompts": len(comparisons),
        "num_identical": sum(c.is_identical for c in comparisons),
        "num_defects": sum(c.num_defects for c in comparisons),
        "comparisons": [comparison.as_dict() for comparison in comparisons],
    }
    return verdict, details


def _distribution(
    pair: Any, rows: list[Any], spec: Any, options: dict[str, Any]
) -> tuple[Any, Any]:
    from neuron_spec.equivalence.distribution import FitSettings, compare_distributions
    from neuron_spec.equivalence.verdict import verdict_on_distribution

    settings = FitSettings(
        num_samples=options["samples"] or 400,
        max_new_tokens=options["max_new_tokens"] or 8,
        options=_request_options(options),
        significance=options["significance"],
        power=options["power"],
        wanted_tv=options["wanted_difference"],
        seed=options["seed"],
    )
    with progress_bars() as progress:
        result = compare_distributions(
            pair[0].system,
            pair[1].system,
            [row.prompt for row in rows],
            settings,
            progress=progress,
        )
    verdict = verdict_on_distribution(result, len(rows), spec.verification if spec else None)
    return verdict, {"distribution": result.as_dict(), "num_prompts": len(rows)}


def _quality(pair: Any, rows: list[Any], spec: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    from neuron_spec.equivalence.quality import answer_all, compare_quality, metric_of
    from neuron_spec.equivalence.verdict import verdict_on_quality

    metrics = [metric_of(text) for text in options["metrics"] or _default_metrics(pair, rows)]
    asked = _request_options(options)
    if any(metric.name == "log-likelihood" for metric in metrics):
        asked["logprobs"] = 0
    replies = answer_all(
        (pair[0].system, pair[1].system),
        rows,
        num_samples=options["samples"] or 1,
        max_new_tokens=options["max_new_tokens"] or 128,
        options=asked,
        seed=options["seed"],
    )
    results = compare_quality(rows, replies, metrics)
    verdict = verdict_on_quality(results, spec.verification if spec else None)
    return verdict, {
        "quality": [result.as_dict() for result in results],
        "num_prompts": len(rows),
    }


_LEVELS = {1: _identity, 2: _distribution, 3: _quality}


def _request_options(options: dict[str, Any]) -> dict[str, Any]:
    asked = {"temperature": options["temperature"]}
    return {**asked, "ignore_eos": True} if options["ignore_eos"] else asked


def _default_metrics(pair: Any, rows: list[Any]) -> list[str]:
    names = ["length"]
    sessions = [opened.session for opened in pair]
    if all(session and session.speculator.limits.has_logprobs for session in sessions):
        names.append("log-likelihood")
    if any(row.references for row in rows):
        names.append("exact-match")
    return names


def _print(verdict: Any, spec: Any, details: dict[str, Any]) -> None:
    if comparisons := details.get("comparisons"):
        _print_comparisons(comparisons)
    rule = f", rule '{spec.verification.rule}'" if spec else ""
    say(f"level {verdict.level} ({verdict.level_name}){rule}: {verdict.summary}")
    if verdict.claim:
        say(verdict.claim)
    for note in verdict.notes:
        say(f"note: {note}")
    say("held" if verdict.held else "did not hold")


def _print_comparisons(comparisons: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("prompt", "tokens", "acceptance length", "identical", "divergence", box=None)
    for index, comparison in enumerate(comparisons):
        acceptance, divergences = comparison["acceptance"], comparison["divergences"]
        length = acceptance and acceptance["acceptance_length"]
        more = f", and {len(divergences) - 1} more" if len(divergences) > 1 else ""
        table.add_row(
            str(index),
            str(comparison["num_output_tokens"] or "-"),
            "-" if length is None else f"{length:.2f}",
            "no" if divergences else "yes",
            plain(_explain(divergences[0]) + more) if divergences else "",
        )
    out().print(table)


def _explain(divergence: dict[str, Any]) -> str:
    margin = "unknown" if divergence["margin"] is None else f"{divergence['margin']:.2e}"
    if divergence["border_distance"] is not None:
        margin += f", drawn {divergence['uniform']:.6f}, {divergence['border_distance']:.2e} from "
        margin += "the border"
    return (
        f"{divergence['kind']} at output position {divergence['position']}: reference "
        f"{divergence['reference_token']}, candidate {divergence['candidate_token']}, "
        f"margin {margin}"
    )
