"""One engine in one process: JSON lines in, JSON lines out, blocked in between.

    python -m peer_engines.worker FAMILY SETTINGS

The first line out tells whether the engine is there: {"ready": its version}, {"missing": module} or
{"error": why}. Then every line in is a request {"prompt_ids", "num_tokens"}, and the line out has
its tokens, the seconds that it took, and how much processor time the process used before it, since
the request before. Runs under interpreters that have the engine and not neuron-spec.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from .loaders import LOADERS, Generate, version_of


def main() -> int:
    family, settings = sys.argv[1], json.loads(sys.argv[2])
    load, module, distribution = LOADERS[family]
    with private_output() as output:
        if importlib.util.find_spec(module) is None:
            say(output, {"missing": module})
            return 0
        try:
            generate = load(settings)
        except Exception as error:
            say(output, {"error": short(error)})
            raise
        say(output, {"ready": version_of(distribution)})
        serve(generate, sys.stdin, output)
    return 0


@contextlib.contextmanager
def private_output() -> Iterator[TextIO]:
    """The real standard output, for answers alone: what libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        yield output


def serve(generate: Generate, requests: TextIO, output: TextIO) -> None:
    last = time.process_time()
    for line in requests:
        request, idle = json.loads(line), time.process_time() - last
        try:
            start = time.perf_counter()
            answer = generate(request["prompt_ids"], request["num_tokens"])
            answer["seconds"] = time.perf_counter() - start
        except Exception as error:
            say(output, {"error": short(error)})
            raise
        last = time.process_time()
        say(output, {**answer, "idle_cpu_s": idle})


def short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def say(output: TextIO, answer: dict[str, Any]) -> None:
    output.write(json.dumps(answer) + "\n")
    output.flush()


if __name__ == "__main__":
    sys.exit(main())
