"""What the verbs share: consoles, progress bars, JSON output, and the spec argument."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from neuron_spec.errors import readable
from neuron_spec.files import Progress

PROGRESS_MIN_BYTES = 1 << 20  # smaller work is done before a bar could be read


def out() -> Console:
    """Results."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Everything that is not a result."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def spec_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """The build spec's path as `SPEC`."""
    return click.argument("spec_path", metavar="SPEC", type=click.Path(path_type=Path))(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`: the result as one JSON document on standard output."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(
        function
    )


def integers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """A callback for options: `1,2,4` as (1, 2, 4), positive, in rising order, each once."""
    try:
        numbers = tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not integers with commas between them") from None
    if numbers[0] < 1:
        raise click.BadParameter(f"{numbers[0]} is not at least 1")
    return numbers


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(data, indent=2))


def plain(text: str) -> str:
    """Text that may come from somebody's file, for a console: neither markup nor controls in it."""
    return escape(readable(text))


def say(text: str) -> None:
    """A plain line of the result, no markup read."""
    out().print(plain(text))


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A progress callback that draws bars on a terminal's standard error, silent elsewhere."""
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

    console = err()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total or None)
            bars.update(tasks[label], completed=done, total=total or None)
            if total and done >= total:
                bars.remove_task(tasks.pop(label))

        yield report
