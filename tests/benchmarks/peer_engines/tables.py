"""A report for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

BUSY_SHARE = 0.02
"""Processor time while others work, as a share of the run, above which a reader is told."""

Report = Mapping[str, Any]


def tables(report: Report) -> Iterator[Table]:
    """Rates, where outputs differ, like against like, and the summary."""
    yield _rates(report)
    yield _differences(report)
    if report["like_against_like"]:
        yield _like_against_like(report)
    yield _summary(report)


def title(report: Report) -> str:
    """What was run, on one line."""
    record = report["record"]
    return (
        f"{record['model']}, {record['dtype']}, {record['threads']} threads, batch 1, greedy, "
        f"{record['max_new_tokens']} new tokens (an end of text does not stop), "
        f"{record['repetitions']} repetitions, interleaved; {record['processor']}"
    )


def remarks(report: Report) -> Iterator[str]:
    """What a reader has to know beside the tables."""
    bounds, record = report["bounds"], report["record"]
    yield (
        f"memory: {bounds['bytes_per_s']['median'] / 1e9:.1f} GB/s read "
        f"({_range(bounds['bytes_per_s'], 1e9)}), {bounds['weight_bytes'] / 1e6:.0f} MB of weights "
        f"a pass: at most {bounds['tokens_per_s']:.1f} tokens/s without speculation"
    )
    if record["repetitions"] < 5:
        yield "fewer than five repetitions: a first look, not a measurement"
    yield (
        "a prompt's own best is picked after the run, out of more configurations on one side than "
        "on the other, which flatters that side a little; 'all' is one configuration for all"
    )
    yield "prompt processing is within the time; ours suffix keeps no earlier answers here"
    for engine in report["engines"]:
        if engine["outputs_that_changed"]:
            yield (
                f"{engine['name']}: {engine['outputs_that_changed']} outputs differ from its own "
                "first repetition"
            )
        if engine["idle_cpu_s"] > BUSY_SHARE * record["seconds"]:
            yield f"{engine['name']}: used {engine['idle_cpu_s']:.1f} s while others worked"
    for name, reason in report["absent"].items():
        yield f"{name}: {reason}"


def _rates(report: Report) -> Table:
    names = list(report["summary"])
    table = _table("tokens/s, median [least-most]", "engine", *names, "of memory's bound")
    for engine in report["engines"]:
        rates = engine["tokens_per_s"]
        cells = [f"{rates[name]['median']:.1f} [{_range(rates[name])}]" for name in names]
        table.add_row(engine["name"], *cells, f"{engine['share_of_bound']:.0%}")
    for name, reason in report["absent"].items():
        table.add_row(name, escape(reason.split(":")[0]))
    return table


def _differences(report: Report) -> Table:
    names = report["record"]["prompts"]
    table = _table("first token that differs from our plain output", "engine", *names)
    for engine in report["engines"]:
        places = engine["differs_from_our_plain_at"]
        cells = ["same" if place is None else str(place) for place in places]
        table.add_row(engine["name"], *cells)
    return table


def _like_against_like(report: Report) -> Table:
    names = list(report["summary"])
    table = _table("like against like: ours / peer", "ours", "peer", *names)
    for row in report["like_against_like"]:
        cells = [_ratio(row["ratio"][name]) for name in names]
        table.add_row(row["ours"], row["peer"], *cells)
    return table


def _summary(report: Report) -> Table:
    families = list(report["summary"]["all"]["peers"])
    headers = [f"/ best of {family}" for family in families]
    table = _table(
        "our fastest lossless configuration; below 1 we lose", "prompt", "ours", "tokens/s",
        "/ our plain", *headers,
    )  # fmt: skip
    for prompt, row in report["summary"].items():
        cells = [
            f"{_ratio(peer['ratio'])} {_way(family, peer['best'])}"
            for family, peer in row["peers"].items()
        ]
        rate = f"{row['tokens_per_s']['median']:.1f}"
        table.add_row(prompt, _way("ours", row["ours"]), rate, _ratio(row["against_plain"]), *cells)
    return table


def _table(name: str, first: str, *columns: str) -> Table:
    table = Table(title=escape(name), title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _range(spread: Mapping[str, float], unit: float = 1.0) -> str:
    return f"{spread['low'] / unit:.1f}-{spread['high'] / unit:.1f}"


def _ratio(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} [{spread['low']:.2f}-{spread['high']:.2f}]"


def _way(family: str, name: str) -> str:
    return name.removeprefix(f"{family} ")
