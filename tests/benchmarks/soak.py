"""A server under load for minutes: 200 streaming clients, some of whom leave or send nonsense.

    make soak                                        five minutes on the demo model
    python tests/benchmarks/soak.py --seconds 60 --tiny    a minute on a tiny random model

Before the load every prompt is asked alone; what is answered under load has to equal that. Looked
at beside: status codes, /health's time, the process's memory, and that no slot is taken at the end.
Ends with 1 if anything of it is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
DEMO_SPEC = ROOT / "compile" / "smollm2-135m-eagle.cpu.toml"
COMPLETIONS = "/v1/completions"
PROMPTS = [
    f"{start} {thing}" for start in ("The story of", "A list of", "How to find", "2 + 2 and")
    for thing in ("the sea", "old maps 日本", "naïve bees", "the number 7")
]  # fmt: skip
SERVE = "from neuron_spec.cli.main import main; main()"
MALFORMED = [
    b"", b"{", b"[" * 1000, b'{"model": 3}', b"\xff\xfe\x00",
    b'{"model": "soak", "prompt": "x", "temperature": "hot"}',
    b'{"model": "soak", "prompt": "x", "nonsense": 1}',
    b'{"model": "soak", "prompt": "' + b"x" * 100_000 + b'"}',
]  # fmt: skip


@dataclass
class Record:
    """What was seen."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    num_tokens: int = 0


def body_of(prompt: str, max_tokens: int, *, stream: bool) -> dict[str, Any]:
    fields = {"model": "soak", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return {**fields, "stream": stream, "ignore_eos": True}


async def read_stream(response: httpx.Response, *, leave_after: int | None) -> str | None:
    """The joined text; None where the client left."""
    texts, num_events = [], 0
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return "".join(texts)
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        texts.append(event["choices"][0]["text"])
        num_events += 1
        if leave_after is not None and num_events >= leave_after:
            return None
    raise RuntimeError("the stream ended without [DONE]")


async def client_life(
    http: httpx.AsyncClient,
    wanted: dict[str, str],
    record: Record,
    chance: random.Random,
    end: float,
) -> None:
    while time.monotonic() < end:
        try:
            await one_request(http, wanted, record, chance)
        except (httpx.HTTPError, RuntimeError) as error:
            record.wrong.append(f"{type(error).__name__}: {error}")
        await asyncio.sleep(chance.random() * 0.2)


async def one_request(
    http: httpx.AsyncClient, wanted: dict[str, str], record: Record, chance: random.Random
) -> None:
    kind = chance.random()
    if kind < 0.1:
        headers = {"content-type": "application/json"}
        response = await http.post(COMPLETIONS, content=chance.choice(MALFORMED), headers=headers)
        record.statuses[f"malformed: {response.status_code}"] += 1
        if response.status_code not in (400, 413):
            record.wrong.append(f"malformed: {response.status_code} {response.text[:200]}")
        return
    prompt = chance.choice(list(wanted))
    leave_after = chance.randrange(1, 10) if kind < 0.25 else None
    request = body_of(prompt, chance.choice((8, 16, 24)), stream=True)
    async with http.stream("POST", COMPLETIONS, json=request) as response:
        record.statuses[f"stream: {response.status_code}"] += 1
        if response.status_code != 200:
            if response.status_code != 429:
                text = (await response.aread()).decode()
                record.wrong.append(f"{response.status_code} {text[:200]}")
            return
        text = await read_stream(response, leave_after=leave_after)
    if text is None:
        record.statuses["left early"] += 1
    else:
        record.num_tokens += request["max_tokens"]
        # An unfinished character at a limit is shown as U+FFFD.
        if not wanted[prompt].startswith(text.rstrip("\ufffd")):
            record.wrong.append(f"{prompt!r}: {text!r} is not {wanted[prompt]!r}")


def watch_health(url: str) -> int:
    """A probe as an orchestrator has it, in a process of its own: until its input is closed; prints
    what it saw as JSON."""
    times_ms: list[float] = []
    faults: list[str] = []
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    with httpx.Client(base_url=url, timeout=10) as http:
        while not is_over.wait(0.25):
            start = time.monotonic()
            try:
                status = http.get("/health").status_code
            except httpx.HTTPError as error:
                faults.append(f"health: {type(error).__name__}")
            else:
                faults += [f"health: {status}"] * (status != 200)
            times_ms.append(1000 * (time.monotonic() - start))
    say(json.dumps({"times_ms": times_ms, "faults": faults}))
    return 0


def say(text: str) -> None:
    Console(highlight=False, soft_wrap=True, markup=False).print(text)


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


async def solo(url: str) -> dict[str, str]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        wanted = {}
        for prompt in PROMPTS:
            response = await http.post(COMPLETIONS, json=body_of(prompt, 24, stream=False))
            wanted[prompt] = response.json()["choices"][0]["text"]
        return wanted


async def soak(url: str, pid: int, seconds: float, num_clients: int) -> tuple[Record, list[float]]:
    """The load, and the server's memory in MB at five moments."""
    wanted, record = await solo(url), Record()
    memory = [memory_mb(pid)]
    end = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        clients = [
            asyncio.create_task(client_life(http, wanted, record, random.Random(number), end))
            for number in range(num_clients)
        ]
        for _ in range(3):
            await asyncio.sleep(seconds / 4)
            memory.append(memory_mb(pid))
        await asyncio.gather(*clients)
        state: dict[str, Any] = {}
        for _ in range(100):
            state = (await http.get("/health")).json()
            if state["num_running"] == state["num_waiting"] == 0:
                break
            await asyncio.sleep(0.1)
        else:
            record.wrong.append(f"slots are taken at the end: {state}")
    return record, [*memory, memory_mb(pid)]


def build(folder: Path, *, is_tiny: bool) -> Path:
    """An artifact with eight slots."""
    from neuron_spec import compile_model, load_spec, prepare

    if is_tiny:
        import tiny

        tiny.write_target(folder / "target")
        tiny.write_eagle(folder / "eagle")
        path = tiny.write_spec(
            folder / "soak.toml",
            target={"model": "target"},
            draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
            shape={"max_prompt_tokens": 64, "max_total_tokens": 96, "batch_size": 8},
        )
        spec = load_spec(path)
    else:
        loaded = load_spec(DEMO_SPEC)
        shape = {"max_prompt_tokens": 64, "max_total_tokens": 96, "batch_size": 8}
        spec = loaded.model_copy(update={"shape": loaded.shape.model_copy(update=shape)})
    return compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact").directory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tiny", action="store_true", help="a random model of 30,000 parameters")
    parser.add_argument(
        "--health-limit", type=float, default=100, help="the longest that /health may take, in ms"
    )
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        return watch_health(options.watch)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = build(folder, is_tiny=options.tiny)
        with (folder / "log").open("w") as log:
            arguments = ["serve", str(artifact), "--port", "0", "--model-name", "soak"]
            server = subprocess.Popen(
                [sys.executable, "-c", SERVE, *arguments, "--max-body-mb", "0.05"],
                stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "COLUMNS": "200"},
            )  # fmt: skip
            try:
                assert server.stdout is not None
                url = server.stdout.readline().split()[-1].removesuffix("/v1")
                wait_for(url)
                start = time.monotonic()
                watch = [sys.executable, __file__, "--watch", url]
                with subprocess.Popen(
                    watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                ) as watcher:
                    # Clients are other machines elsewhere; here they leave the cores to the server.
                    os.nice(10)
                    record, memory = asyncio.run(
                        soak(url, server.pid, options.seconds, options.clients)
                    )
                    seen = json.loads(watcher.communicate()[0])
                record.health_ms, elapsed_s = seen["times_ms"], time.monotonic() - start
                record.wrong += seen["faults"]
            finally:
                server.terminate()
                exit_code = server.wait(60)
        loud = loud_lines((folder / "log").read_text())
    if slow := [time_ms for time_ms in record.health_ms if time_ms > options.health_limit]:
        record.wrong.append(f"health took over {options.health_limit:.0f} ms {len(slow)} times")
    return report(record, memory, elapsed_s, exit_code, loud)


def loud_lines(log: str) -> list[str]:
    """Errors, and whatever is no JSON line."""
    loud = []
    for line in log.splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            loud.append(line)
            continue
        if told["level"] in ("error", "critical"):
            loud.append(told["message"])
    return loud


def wait_for(url: str) -> None:
    for _ in range(2000):
        try:
            httpx.get(f"{url}/health")
        except httpx.HTTPError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server does not answer")


def report(
    record: Record, memory: list[float], elapsed_s: float, exit_code: int, loud: list[str]
) -> int:
    health = sorted(record.health_ms)
    say(f"{elapsed_s:.0f} s, {sum(record.statuses.values())} requests, "
          f"{record.num_tokens / elapsed_s:.0f} tokens/s in whole answers")  # fmt: skip
    for name, count in sorted(record.statuses.items()):
        say(f"  {name}: {count}")
    say(f"health: median {health[len(health) // 2]:.0f} ms, "
          f"99 % {health[int(len(health) * 0.99)]:.0f} ms, most {health[-1]:.0f} ms")  # fmt: skip
    say("memory, MB: " + " ".join(f"{value:.0f}" for value in memory))
    faults = list(record.wrong)
    # The load's own buffers come with its beginning; what grows after that is a leak.
    if memory[-1] > memory[1] * 1.1 + 20:
        faults.append(f"memory grew from {memory[1]:.0f} to {memory[-1]:.0f} MB")
    if exit_code != 143:
        faults.append(f"the server ended with {exit_code}")
    faults += [f"log: {line}" for line in loud]
    for fault in faults[:20]:
        say(f"WRONG {fault}")
    say(f"{len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
