"""One way in one process: JSON lines in, JSON lines out, blocked in between.

    python -m graph_passes.worker WAY CASE

The first line out tells for how many seconds it was made ready: loaded or compiled, and every pass
run once, PyTorch's import not counted. Every line in is a number of rows; the line out has the
seconds of passes of so many, one after the other, and the ids that the first gave.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peer_engines.worker import private_output, say, short

from .passes import WAYS, Case, Run

NUM_PASSES = 8  # of an answer


def main() -> int:
    way, told = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(told["threads"])
    case = Case(
        Path(told["model"]), Path(told["folder"]), told["dtype"], told["rows"], told["span"]
    )
    with private_output() as output:
        begun = time.perf_counter()
        try:
            run = WAYS[way](case)
            for rows in case.rows:
                with torch.no_grad():
                    run(rows, 0)
        except Exception as error:
            say(output, {"error": short(error)})
            raise
        say(output, {"seconds": time.perf_counter() - begun})
        for line in sys.stdin:
            say(output, answer(run, int(line), case.span))
    return 0


def answer(run: Run, rows: int, span: int) -> dict[str, Any]:
    """Passes side by side from half of the span on; before them one whose time is not told."""
    begin, seconds = span // 2, []
    with torch.no_grad():
        ids = run(rows, begin)
        for number in range(NUM_PASSES):
            begun = time.perf_counter()
            run(rows, begin + number)
            seconds.append(time.perf_counter() - begun)
    return {"seconds": seconds, "ids": ids.flatten().tolist()}


if __name__ == "__main__":
    sys.exit(main())
