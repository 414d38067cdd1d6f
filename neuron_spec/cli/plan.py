"""`neuron-spec plan`: the best draft length for every load, from measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.common import integers, json_option, out, print_json, progress_bars, say


@click.command(
    "plan",
    short_help="Find the draft length that pays at every load.",
    epilog="Example: neuron-spec plan build/my-spec/artifact --concurrency 1,2,4,8",
)
@click.argument("source", metavar="ARTIFACT|RUN|SPEC", type=click.Path(path_type=Path))
@click.option(
    "--acceptance", metavar="RUN", type=click.Path(path_type=Path),
    help="With a SPEC: the run, on any backend, whose acceptance is planned with.",
)  # fmt: skip
@click.option(
    "--off", metavar="ARTIFACT", type=click.Path(path_type=Path),
    help="The target alone, where ARTIFACT cannot switch speculation off.",
)  # fmt: skip
@click.option(
    "--beside", metavar="RUN", multiple=True, type=click.Path(path_type=Path),
    help="Other runs of the same target and prompts, with other drafts: which to take at which "
    "load and kind of work. Repeatable.",
)  # fmt: skip
@click.option("--instance", help="With a SPEC: another instance than its own.")
@click.option(
    "--prompts", type=click.Path(path_type=Path), help="File of prompts.  [default: built-in ones]"
)
@click.option("--kinds", help="Built-in prompts of these kinds of work: all, or code,maths,…")
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first rows.")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("-t", "--temperature", type=float, default=0.0, show_default=True, help="0: greedy.")
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--concurrency", callback=integers, default="1", show_default=True,
    help="Requests in flight to measure, such as 1,2,4,8.",
)  # fmt: skip
@click.option(
    "--write", "spec_path", metavar="SPEC", type=click.Path(path_type=Path),
    help="Write a copy of this spec with the plan in it beside it, as NAME.planned.toml.",
)  # fmt: skip
@click.option(
    "--tree", "rates", metavar="RATES|measure",
    help="Find the best draft tree: from acceptance by depth and rank as JSON, [[0.6, 0.2], …], or "
    "measured now on an ARTIFACT with a wide tree.",
)  # fmt: skip
@click.option("--nodes", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "--tree-output", type=click.Path(path_type=Path), help="Write the tree for `draft.tree`."
)
@json_option
def command(
    source: Path,
    acceptance: Path | None,
    beside: tuple[Path, ...],
    spec_path: Path | None,
    rates: str | None,
    nodes: int,
    tree_output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Plan draft lengths from an ARTIFACT, which is measured now, or a RUN of `bench --json`.

    Where nothing was measured on the device yet, a SPEC for Neuron does: with the acceptance of a
    run, and costs estimated from the instance's memory bandwidth and arithmetic.

    Prints expected tokens and speed-up for every draft length, where speculation stops paying, the
    `by_load` line for the spec, and the questions to settle with the answers measured.
    """
    is_measured = rates == "measure" or options["off"] is not None
    if is_measured and source.is_file():
        raise click.UsageError("--tree measure and --off go with an ARTIFACT that is measured now")
    if (source.suffix == ".toml") != (acceptance is not None):
        raise click.UsageError("a SPEC goes with --acceptance RUN, and nothing else does")
    instance = options.pop("instance")
    if acceptance is not None:
        if beside:
            raise click.UsageError("--beside goes with what was measured, not with a SPEC")
        result = _estimated(source, acceptance, instance, options["concurrency"])
    else:
        result = _planned(source, _run(source, options), beside)
    if rates is not None:
        found = _measured_rates(source, options) if rates == "measure" else _read_rates(rates)
        result["tree"] = _tree(found, nodes, tree_output)
    if spec_path is not None:
        if not result["toml"]:
            raise _one_length()
        result["written"] = str(_write(spec_path, result["toml"]))
    if as_json:
        print_json(result)
    else:
        _print(result)


def _run(source: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Read a run, or measure one."""
    if source.is_file():
        from neuron_spec.bench.run import read_run

        return read_run(source)
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.cli.bench import run_bench

    return run_bench(open_artifact(source), is_planned=True, **options)


def _planned(source: Path, run: dict[str, Any], beside: tuple[Path, ...]) -> dict[str, Any]:
    from neuron_spec.bench.plan import plan_of, planned_line
    from neuron_spec.bench.questions import questions_of

    plan = plan_of(run)
    told: dict[str, Any] = {"questions": questions_of(run, plan), "notes": run["notes"]}
    if beside:
        told["choice"] = _choice(source, run, beside)
    return {**plan.as_dict(), "toml": planned_line(plan, run), **told}


def _choice(source: Path, run: dict[str, Any], beside: tuple[Path, ...]) -> dict[str, Any]:
    from neuron_spec.bench.choice import choice_of
    from neuron_spec.bench.run import read_run

    return choice_of({str(source): run, **{str(path): read_run(path) for path in beside}})


def _one_length() -> Exception:
    from neuron_spec.bench.questions import ONE_LENGTH
    from neuron_spec.errors import UserError

    return UserError(
        f"no by_load to write: {ONE_LENGTH}",
        where="--write",
        mend="set draft.num_draft_tokens to the best k of the load, and compile that",
    )


def _estimated(
    spec_path: Path, run: Path, instance: str | None, concurrency: tuple[int, ...]
) -> dict[str, Any]:
    from neuron_spec.bench.estimate import estimated_plan
    from neuron_spec.bench.run import read_run
    from neuron_spec.spec import load_spec

    return estimated_plan(load_spec(spec_path), read_run(run), concurrency, instance=instance)


def _read_rates(path: str) -> list[list[float]]:
    from neuron_spec.bench.plan import read_rank_rates

    return read_rank_rates(Path(path))


def _measured_rates(source: Path, options: dict[str, Any]) -> list[list[float]]:
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.bench.ranks import measure_rank_rates
    from neuron_spec.bench.slices import rows_of
    from neuron_spec.engine import open_session

    artifact = open_artifact(source)
    rows = rows_of(options["prompts"], options["kinds"], options["limit"])
    with progress_bars() as progress:
        measured = measure_rank_rates(
            open_session(artifact),
            artifact.spec.draft.tree,
            rows,
            max_new_tokens=options["max_new_tokens"],
            progress=progress,
        )
    return [[rate.value for rate in row] for row in measured]


def _tree(rates: list[list[float]], nodes: int, output: Path | None) -> dict[str, Any]:
    from neuron_spec.errors import storage_errors
    from neuron_spec.files import write_text
    from neuron_spec.planner import best_tree
    from neuron_spec.theory import expected_tree_tokens
    from neuron_spec.trees import Tree

    paths = best_tree(rates, nodes)
    if output is not None:
        with storage_errors(output):
            write_text(output, json.dumps(paths) + "\n")
    return {
        "rank_rates": rates,
        "paths": [list(path) for path in paths],
        "expected_tokens_per_step": expected_tree_tokens(Tree.from_paths(paths), rates),
        "written": None if output is None else str(output),
    }


def _write(spec_path: Path, line: str) -> Path:
    """A new spec beside the old one; never over a file."""
    from neuron_spec.bench.plan import with_by_load
    from neuron_spec.errors import UserError, storage_errors
    from neuron_spec.files import write_text
    from neuron_spec.spec import load_spec

    load_spec(spec_path)  # what is copied has to be a spec
    target = spec_path.with_name(f"{spec_path.stem}.planned.toml")
    if target.exists():
        raise UserError("is there already", where=target, mend="move it away, or delete it")
    text = with_by_load(spec_path.read_text(encoding="utf-8"), line)
    with storage_errors(target):
        write_text(target, text)
    load_spec(target)
    return target


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    from neuron_spec.metrics.estimates import Estimate

    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("in flight", "k", "tokens a step", "step ms", "speed-up", ""):
        table.add_column(column, no_wrap=True)
    for load in result["loads"]:
        for option in load["options"]:
            is_best = option["num_draft_tokens"] == load["best_num_draft_tokens"]
            step = option["step_s"]["value"] * 1e3
            table.add_row(
                str(load["concurrency"]),
                str(option["num_draft_tokens"]),
                Estimate(**option["tokens_per_step"]).shown(),
                f"{step:.2f}",
                Estimate(**option["speed_up"]).shown(),
                "best" if is_best else "",
            )
    out().print(table)
    if choice := result.get("choice"):
        _print_choice(choice)
    if found := result.get("estimate"):
        say(f"\nestimated for {found['instance']}, TP {found['tp_degree']}: nothing was measured")
    say(f"\n[draft]\n{result['toml']}\n" if result["toml"] else "")
    for number, item in enumerate(result["questions"], start=1):
        say(f"{number}. {item['question']} {item['answer']}")
    if tree := result.get("tree"):
        say(f"\ntree of {len(tree['paths'])} nodes, {tree['expected_tokens_per_step']:.2f} tokens")
        say(json.dumps(tree["paths"]) if tree["written"] is None else f"written: {tree['written']}")
    if "written" in result:
        say(f"written: {result['written']}")
    for note in result["notes"]:
        say(f"note: {note}")


def _print_choice(choice: dict[str, Any]) -> None:
    from rich.table import Table

    from neuron_spec.metrics.estimates import Estimate

    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("", "run", "k", "speed-up", ""):
        table.add_column(column, no_wrap=column != "run", overflow="fold")
    named = [(f"{load['concurrency']} in flight", load) for load in choice["loads"]]
    for name, rows in [*named, *((kind["kind"], kind) for kind in choice["kinds"])]:
        for row in rows["options"]:
            k = row.get("num_draft_tokens", "")
            is_best = row["run"] == rows["best"]
            speed_up = Estimate(**row["speed_up"]).shown()
            table.add_row(name, row["run"], str(k), speed_up, "best" if is_best else "")
        if rows["best"] is None:
            table.add_row(name, "no draft", "0", "1", "best")
    say("")
    out().print(table)
