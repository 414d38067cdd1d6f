"""What HTTP costs, and what serving several at once brings, on the demo model, as ratios.

    python tests/benchmarks/serving.py --repetitions 3

One client's streamed tokens/s against the Python API's on the same prompt, in turn and in two
processes, each idle while the other works; then eight clients' tokens/s together against one
client's. Ratios are of one repetition, their median and spread over all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

from soak import PROMPTS, SERVE, build, wait_for

from neuron_spec.cli.serve import spin_briefly

NUM_CLIENTS = 8
NUM_TOKENS = 48


def streamed(http: httpx.Client, prompt: str) -> int:
    """Number of output tokens, as the stream's usage tells it."""
    body = {
        "model": "soak", "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if '"usage"' in line]
    return int(lines[-1].split('"completion_tokens": ')[1].split(",")[0])


def rate(work: Any) -> float:
    """Tokens/s of work that returns how many tokens it made."""
    start = time.perf_counter()
    return float(work() / (time.perf_counter() - start))


def measure(url: str, session: Any, repetitions: int) -> dict[str, list[float]]:
    prompts = PROMPTS[:NUM_CLIENTS]
    for prompt in prompts:  # what is made at first use, and kept beginnings, are not what is asked
        streamed(httpx.Client(base_url=url, timeout=300), prompt)
    options: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    rates: dict[str, list[float]] = {"Python API": [], "one client": [], "eight clients": []}
    http = httpx.Client(base_url=url, timeout=300)

    def in_process(prompt: str) -> int:
        return len(session.generate(prompt, **options).token_ids)

    def over_http(prompt: str) -> int:
        return streamed(http, prompt)

    def together() -> int:
        return sum(threads.map(over_http, prompts))

    with http, ThreadPoolExecutor(NUM_CLIENTS) as threads:
        for number in range(repetitions):
            prompt = prompts[number % len(prompts)]
            rates["Python API"].append(rate(partial(in_process, prompt)))
            rates["one client"].append(rate(partial(over_http, prompt)))
            rates["eight clients"].append(rate(together))
    return rates


def main() -> int:
    """Print the rates and the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--tiny", action="store_true", help="a random model of 30,000 parameters")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    spin_briefly(os.environ)  # or this process would not be idle while the server works
    with tempfile.TemporaryDirectory() as name:
        from neuron_spec import load

        artifact = build(Path(name), is_tiny=options.tiny)
        arguments = ["serve", str(artifact), "--port", "0", "--model-name", "soak"]
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1].removesuffix("/v1")
            wait_for(url)
            session = load(artifact)
            session.generate("warm", max_new_tokens=8)
            rates = measure(url, session, options.repetitions)
        finally:
            server.terminate()
            server.wait(60)
    for name, values in rates.items():
        console.print(f"{name:<14}{statistics.median(values):7.1f} tokens/s")
    one = rates["one client"]
    console.print(f"HTTP / Python API, one client: {ratio(one, rates['Python API'])}")
    console.print(f"eight clients / one: {ratio(rates['eight clients'], one)}")
    return 0


def ratio(above: list[float], below: list[float]) -> str:
    """Median and spread of the repetitions' ratios."""
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    return f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
