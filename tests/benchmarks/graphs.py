"""Our compiled kernels against what PyTorch compiles of the same pass: torch.compile, AOTInductor.

    python tests/benchmarks/graphs.py --dtype bfloat16 --rows 1 6

On the demo target: a pass of one token, and of as many as a verification has. Every way has a
process of its own; it is made ready in an empty folder, then anew in a second process that finds
what the first one left, and that one is measured. Ways take turns, in another order each round. A
way that cannot be compiled here is listed with the reason. Takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graph_passes.passes import WAYS
from peer_engines.figures import Spread
from peer_engines.process import BENCHMARKS, EngineFailedError, environment
from rich.console import Console
from rich.table import Table

from neuron_spec.bench.record import _processor
from neuron_spec.checkpoints import demo_target

OURS = next(iter(WAYS))
PAUSE_S = 0.2
"""Between turns: threads of the one before may spin for a while."""


class Worker:
    """A process with one way, ready.

    Raises:
        EngineFailedError: it is not; the message says why.
    """

    def __init__(self, way: str, case: dict[str, Any], log: Path) -> None:
        self._log = log
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(case["folder"]) / "inductor")}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "graph_passes.worker", way, json.dumps(case)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, cwd=BENCHMARKS, env={**environment(case["threads"]), **caches},
            )  # fmt: skip
        self.ready_s = float(self._answer()["seconds"])

    def ask(self, rows: int) -> dict[str, Any]:
        """See `graph_passes/worker.py`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"ended; see {self._log}"}
        if "error" in answer:
            self.close()
            raise EngineFailedError(answer["error"])
        return answer


@dataclass
class Measured:
    """What one way took.

    Attributes:
        built_s, ready_s: until it was ready in the first process, and in one after it.
        num_bytes: what the first left on disk.
        seconds: rows -> the median pass of every round.
        ids: rows -> what a pass gave.
    """

    built_s: float
    ready_s: float
    num_bytes: int
    seconds: dict[int, list[float]] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)


def main() -> int:
    """Measure and print; 1 if ours failed."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as stack:
        measured, absent = _measured(options, Path(folder), stack)
    report = _report(options, measured, absent)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _print(report)
    return int(OURS not in measured)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--span", type=int, default=256)
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS))
    parser.add_argument("--model", type=Path, help="a checkpoint's directory; the demo target's")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where packages go meanwhile, some GB")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def _measured(
    options: argparse.Namespace, folder: Path, stack: ExitStack
) -> tuple[dict[str, Measured], dict[str, str]]:
    workers: dict[str, Worker] = {}
    measured: dict[str, Measured] = {}
    absent: dict[str, str] = {}
    for number, way in enumerate(dict.fromkeys([OURS, *options.ways])):
        _say(f"compiling: {way}")
        own = folder / str(number)
        own.mkdir()
        case = _case(options, own)
        try:
            with closing(Worker(way, case, folder / f"{number}-first.log")) as first:
                built_s = first.ready_s
            worker = stack.enter_context(closing(Worker(way, case, folder / f"{number}.log")))
        except EngineFailedError as error:
            absent[way] = str(error)
            continue
        workers[way] = worker
        measured[way] = Measured(built_s, worker.ready_s, _num_bytes(own))
    for turn in range(options.rounds):
        _say(f"round {turn + 1} of {options.rounds}")
        for rows in options.rows:
            order = list(workers)
            random.Random(turn).shuffle(order)
            for way in order:
                answer = workers[way].ask(rows)
                median = statistics.median(answer["seconds"])
                measured[way].seconds.setdefault(rows, []).append(median)
                measured[way].ids[rows] = answer["ids"]
                time.sleep(PAUSE_S)
    return measured, absent


def _case(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model = options.model or demo_target.ensure(f"{demo_target.SCHEME}{demo_target.NAME}")
    return {
        "model": str(model),
        "folder": str(folder),
        "dtype": options.dtype,
        "rows": options.rows,
        "span": options.span,
        "threads": options.threads,
    }


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _report(
    options: argparse.Namespace, measured: dict[str, Measured], absent: dict[str, str]
) -> dict[str, Any]:
    ours = measured.get(OURS)
    return {
        "dtype": options.dtype,
        "span": options.span,
        "threads": options.threads,
        "rounds": options.rounds,
        "processor": _processor(),
        "ways": {way: told_of(own, ours) for way, own in measured.items() if ours},
        "absent": absent,
    }


def told_of(own: Measured, ours: Measured) -> dict[str, Any]:
    """Figures of one way; its passes' times also as multiples of ours of the same round."""
    return {
        "built_s": own.built_s,
        "ready_s": own.ready_s,
        "num_bytes": own.num_bytes,
        "passes": {
            rows: {
                "ms": Spread.of(1000 * each for each in seconds).as_dict(),
                "over_kernels": Spread.of(
                    theirs / our for theirs, our in zip(seconds, ours.seconds[rows], strict=True)
                ).as_dict(),
                "same_ids": own.ids[rows] == ours.ids[rows],
            }
            for rows, seconds in own.seconds.items()
        },
    }


def _print(report: dict[str, Any]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(
        f"a pass of the target, {report['dtype']}, {report['span']} positions, "
        f"{report['threads']} threads, {report['processor']}; medians of {report['rounds']}",
        soft_wrap=True,
        markup=False,
    )
    console.print(_table(report["ways"]))
    for way, told in report["ways"].items():
        others = [rows for rows, taken in told["passes"].items() if not taken["same_ids"]]
        if others:
            console.print(f"{way}: other ids than the kernels' in passes of {others} tokens")
    for way, reason in report["absent"].items():
        console.print(f"{way}: {reason}", soft_wrap=True, markup=False)


def _table(ways: dict[str, Any]) -> Table:
    table = Table()
    table.add_column("way")
    for column in ("compiled in, s", "loaded in, s", "on disk, MB"):
        table.add_column(column, justify="right")
    for rows in next(iter(ways.values()))["passes"] if ways else ():
        table.add_column(f"tokens: {rows}, ms", justify="right")
        table.add_column(f"over {OURS}", justify="right", no_wrap=True)
    for way, told in ways.items():
        figures = (told["built_s"], told["ready_s"], told["num_bytes"] / 1e6)
        cells = [f"{figure:.1f}" for figure in figures]
        for taken in told["passes"].values():
            ratio = taken["over_kernels"]
            cells.append(f"{taken['ms']['median']:.1f}")
            cells.append(f"{ratio['median']:.2f} ({ratio['low']:.2f} … {ratio['high']:.2f})")
        table.add_row(way, *cells)
    return table


def _say(text: str) -> None:
    Console(stderr=True, highlight=False).print(text)


if __name__ == "__main__":
    sys.exit(main())
