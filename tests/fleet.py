"""Programs that run replicas on Ray, and clients that note what they are answered."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tiny

from neuron_spec import compile_model, load, load_spec, prepare
from neuron_spec.artifacts import Artifact

KEY = "test-key-3f9b"
HEADERS = {"Authorization": f"Bearer {KEY}"}
START_S = 300  # of a busy machine
PROMPTS = ("abc", "hello", "To be", "xyzzy", "12 34", "né", "q", "zz top")


def build(folder: Path, *, seed: int = 0) -> Artifact:
    """The tiny target with the tiny EAGLE head; another seed is another model."""
    tiny.write_target(folder / "target", seed=seed, max_position_embeddings=1024)
    tiny.write_eagle(folder / "eagle", max_position_embeddings=1024)
    path = tiny.write_spec(
        folder / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 64, "max_total_tokens": 1000, "batch_size": 2},
    )
    spec = load_spec(path)
    return compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")


def answers(artifact: Artifact, num_tokens: int) -> dict[str, str]:
    """What every prompt is to be answered: alone, greedy."""
    session = load(artifact.directory)
    return {
        prompt: session.generate(prompt, max_new_tokens=num_tokens, ignore_eos=True).text
        for prompt in PROMPTS
    }


def body_of(prompt: str, num_tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True,
        "temperature": 0, **fields,
    }  # fmt: skip


@dataclass
class Program:
    """A program with Ray below it, and what it prints."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def errors(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def url(self) -> str:
        found = re.search(r"http://[\d.]+:\d+", self.output)
        assert found, self.output
        return found[0]

    def wait_for(self, line: str, timeout_s: float = START_S) -> None:
        end = time.monotonic() + timeout_s
        while line not in self.output.splitlines():
            assert self.process.poll() is None, self.output + self.errors
            assert time.monotonic() < end, f"no line {line!r}:\n{self.output}{self.errors}"
            time.sleep(0.1)

    def replicas(self) -> list[int]:
        """Process ids."""
        return [pid for pid in below(self.process.pid) if "ServeReplica" in command(pid)]


@contextmanager
def program(*arguments: str, **environment: str) -> Iterator[Program]:
    """A Python program, with everything that Ray writes in a folder that is removed.

    The folder's name is short: Ray makes sockets in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="nspec-"))
    variables = {
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_TOKEN": secrets.token_hex(16),  # or Ray would write one into the home directory
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
        )
    running = Program(process, folder)
    try:
        yield running
    finally:
        left = below(process.pid)
        process.kill()
        process.communicate()
        for pid in left:
            if "ray" in command(pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def below(pid: int) -> list[int]:
    """All descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # has ended meanwhile
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in parents.get(parent, [])]
        found += new
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@dataclass
class Outcome:
    """What a client was answered: `status` None where the connection broke."""

    prompt: str
    status: int | None
    text: str = ""
    is_complete: bool = False
    headers: dict[str, str] = field(default_factory=dict)


def ask(url: str, prompt: str, num_tokens: int, *, stream: bool) -> Outcome:
    asked = _stream if stream else _whole
    return asked(f"{url}/v1/completions", prompt, body_of(prompt, num_tokens, stream=stream))


def _whole(url: str, prompt: str, body: dict[str, Any]) -> Outcome:
    try:
        response = httpx.post(url, json=body, headers=HEADERS, timeout=100)
    except httpx.TransportError:
        return Outcome(prompt, None)
    headers = dict(response.headers)
    if response.status_code != 200:
        return Outcome(prompt, response.status_code, response.text, headers=headers)
    (choice,) = response.json()["choices"]
    return Outcome(prompt, 200, choice["text"], choice["finish_reason"] == "length", headers)


def _stream(url: str, prompt: str, body: dict[str, Any]) -> Outcome:
    outcome = Outcome(prompt, None)
    told, reasons = [], set()
    try:
        with httpx.stream("POST", url, json=body, headers=HEADERS, timeout=100) as response:
            outcome.headers = dict(response.headers)
            status = response.status_code
            for line in response.iter_lines():
                told.append(line.removeprefix("data: "))
    except httpx.TransportError:
        status = None
    if status not in (200, None):
        return Outcome(prompt, status, "\n".join(told))
    for event in told:
        if event and event != "[DONE]":
            (choice,) = json.loads(event)["choices"]
            outcome.text += choice["text"]
            reasons.add(choice["finish_reason"])
    outcome.is_complete = "[DONE]" in told and "length" in reasons
    outcome.status = status
    return outcome
