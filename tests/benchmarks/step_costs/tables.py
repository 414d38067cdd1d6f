"""The figures for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

Report = Mapping[str, Any]
COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "overhead": (
        "a step of the decode loop beyond forward passes and LM heads, ms",
        {
            "way": "draft", "batch": "running", "step_ms": "whole step",
            "beyond_models_ms": "beyond the models", "least_beyond_models_ms": "at least",
            "in_loop_ms": "of it in the loop",
        },
    ),
    "batch": ("a step against how many run, ms", {
        "k": "k", "batch": "running", "step_ms": "step", "ratio": "ratio to the first"}),
    "context": ("a step against the context, one running, ms", {
        "k": "k", "context": "tokens", "step_ms": "step", "ratio": "ratio to the first"}),
    "memory": ("KV caches of target and EAGLE head, MB", {
        "batch": "slots", "positions": "positions", "predicted_bytes": "predicted",
        "allocated_bytes": "allocated", "resident_bytes": "memory grown"}),
    "prefill": ("a prompt, ms", {
        "tokens": "tokens", "ours_ms": "ours", "transformers_ms": "transformers",
        "ratio": "ours / transformers"}),
}  # fmt: skip
"""Part of the report -> title, and field -> column."""


def tables(report: Report) -> Iterator[Table]:
    """One a part."""
    for part, (title, columns) in COLUMNS.items():
        if part not in report:
            continue
        table = Table(title=title, title_justify="left")
        for column in columns.values():
            table.add_column(column, justify="right")
        for figures in report[part]:
            table.add_row(*(shown(field, figures[field]) for field in columns))
        yield table


def shown(field: str, value: float | str) -> str:
    """A figure in its unit."""
    if field.endswith("_bytes"):
        return f"{float(value) / 1e6:.1f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
