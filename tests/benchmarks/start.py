"""How long a new process takes: until `--help` is printed, until a first token is there.

    python tests/benchmarks/start.py                the demo model
    python tests/benchmarks/start.py --tiny --json  a random model, figures for machines

Everything runs in processes of its own, in turn, so that what else the machine does touches all of
it; told are the median and the range. Times count from where the process is asked for, so they hold
Python's own start. Files have been read and compiled to bytecode before, as an installation does:
neither is what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[2]
HELP = """
import sys
from neuron_spec.cli.main import main

sys.argv = ["neuron-spec", "--help"]
main()
"""
TORCH = "import torch; print()"
# Arguments: the artifact and the prompt as JSON.
FIRST_TOKEN = """
import json, sys, neuron_spec
from neuron_spec.engine.events import TokenEvent

session = neuron_spec.load(sys.argv[1])
events = session.stream(json.loads(sys.argv[2]), max_new_tokens=8)
assert isinstance(next(events), TokenEvent)
print(flush=True)
"""
TEXT = "The capital of France is"
CHAT = [{"role": "user", "content": TEXT}]


def main() -> int:
    """Run all of it in turn and tell the times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a random model, in no time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        artifact = str(_artifact(Path(folder), is_tiny=options.tiny))
        times = _times(artifact, options.repeats)
    _print(times, options)
    return 0


def _artifact(folder: Path, *, is_tiny: bool) -> Path:
    sys.path.insert(0, str(ROOT / "tests/benchmarks"))
    import soak

    return soak.build(folder, is_tiny=is_tiny)


def _times(artifact: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of every repeat; one more round comes before and is not counted."""
    ways: dict[str, tuple[str, ...]] = {
        "neuron-spec --help": (HELP,),
        "import torch": (TORCH,),
        "load, first token of a text": (FIRST_TOKEN, artifact, json.dumps(TEXT)),
        "load, first token of a chat": (FIRST_TOKEN, artifact, json.dumps(CHAT)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for index in track(range(repeats + 1), "rounds", console=Console(stderr=True)):
        for name, (code, *arguments) in ways.items():
            seconds = _seconds(code, *arguments)
            if index:
                times[name].append(seconds)
    return times


def _seconds(code: str, *arguments: str) -> float:
    """Until a new process writes its first line."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        line, seconds = process.stdout.readline(), time.perf_counter() - begun
        process.stdout.read()
    if process.returncode or not line:
        raise RuntimeError(f"ended with {process.returncode}")
    return seconds


def _print(times: dict[str, list[float]], options: argparse.Namespace) -> None:
    rows = [
        {"name": name, "median_s": statistics.median(values), "range_s": (min(values), max(values))}
        for name, values in times.items()
    ]
    console = Console()
    model = "tiny" if options.tiny else "demo"
    if options.json:
        console.print_json(json.dumps({"model": model, "repeats": options.repeats, "times": rows}))
        return
    table = Table(title=f"a new process, {model} model, {options.repeats} times")
    for column in ("until", "median, s", "from … to"):
        table.add_column(column, justify="left" if column == "until" else "right")
    for row in rows:
        low, high = row["range_s"]
        table.add_row(row["name"], f"{row['median_s']:.2f}", f"{low:.2f} … {high:.2f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
