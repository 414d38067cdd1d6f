"""What the verbs share: consoles, progress bars, JSON output, and the spec argument."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from neuron_spec.errors import readable

if TYPE_CHECKING:  # rich takes as long as everything else that `--help` needs
    from rich.console import Console

    from neuron_spec.backends.neuron.config import NxdiConfig
    from neuron_spec.files import Progress
    from neuron_spec.preflight.findings import Finding

PROGRESS_MIN_BYTES = 1 << 20  # smaller work is done before a bar could be read


def out() -> Console:
    """Results."""
    return _console()


def err() -> Console:
    """Everything that is not a result."""
    return _console(stderr=True)


def _console(**options: Any) -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, **options)


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
    from rich.markup import escape

    return escape(readable(text))


def say(text: str) -> None:
    """A plain line of the result, no markup read."""
    out().print(plain(text))


_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def print_findings(findings: Iterable[Finding]) -> None:
    """Findings of the preflight or the doctor, each with its remedy and source."""
    console = out()
    for finding in findings:
        colour = _COLOURS[finding.severity]
        only = "" if finding.backend == "any" else f" ({finding.backend} backend only)"
        console.print(
            f"[bold {colour}]{finding.severity}[/]{only} {finding.code}: {plain(finding.message)}"
        )
        console.print(f"  mend: {plain(finding.remedy)}")
        console.print(f"  source: {plain(finding.source)}")


def print_config(config: NxdiConfig) -> None:
    """What NxD Inference is configured with, and why."""
    console = out()
    for title, table in config.sections:
        console.print(f"[bold]{plain(title)}[/]")
        for name, setting in table.items():
            why = f"  [dim]# {plain(setting.reason)}[/]" if setting.reason else ""
            console.print(f"  {name} = {plain(repr(setting.value))}{why}")
    for assumption in config.assumptions:
        console.print(f"[yellow]assumed[/] {plain(assumption)}")


@contextmanager
def _own_stderr() -> Iterator[TextIO]:
    """Standard error by a descriptor of its own: a compiler's output is turned into a log
    meanwhile, standard error and all."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except OSError:  # it is no file
        yield sys.stderr
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        yield stream


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A progress callback that draws bars on a terminal's standard error; elsewhere a line for
    every graph that is compiled, since that takes minutes, and silence about the rest."""
    is_terminal = err().is_terminal
    with _own_stderr() as stream:
        if is_terminal:
            with _bars(stream) as report:
                yield report
        else:
            yield _line_writer(stream)


def _line_writer(stream: TextIO) -> Progress:
    from neuron_spec.backends.neuron.progress import COUNTED

    started = time.monotonic()

    def report(label: str, done: int, total: int) -> None:
        if label.endswith(COUNTED):
            seconds = time.monotonic() - started
            stream.write(f"{label}: {done} of {total} after {seconds:.0f} s\n")
            stream.flush()

    return report


@contextmanager
def _bars(stream: TextIO) -> Iterator[Progress]:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=_console(file=stream),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bars:
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total or None)
            bars.update(tasks[label], completed=done, total=total or None)
            if total and done >= total:
                bars.remove_task(tasks.pop(label))

        yield report
