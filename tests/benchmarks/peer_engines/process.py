"""The other end of `worker.py`: start an engine's process, ask it, end it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1]
LOAD_LIMIT_S = 900.0
"""vLLM compiles for a minute when it starts."""
ANSWER_LIMIT_S = 300.0


class EngineMissingError(Exception):
    """The interpreter does not have the engine."""


class EngineFailedError(Exception):
    """It is there and does not work."""


class Worker:
    """A process with one engine, loaded and waiting.

    Raises:
        EngineMissingError: not installed.
        EngineFailedError: did not load; `ask` raises it too.
    """

    def __init__(self, python: str, family: str, settings: dict[str, Any], log: Path) -> None:
        self._log = log
        arguments = [python, "-m", "peer_engines.worker", family, json.dumps(settings)]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, cwd=BENCHMARKS, env=environment(settings["threads"]),
            )  # fmt: skip
        answer = self._answer(LOAD_LIMIT_S)
        if "missing" in answer:
            self.close()
            raise EngineMissingError(answer["missing"])
        self.version: str = answer["ready"]

    def ask(self, prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
        """See `worker.py`."""
        assert self._process.stdin is not None
        try:
            request = {"prompt_ids": prompt_ids, "num_tokens": num_tokens}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineFailedError(f"its process ended; see {self._log}") from None
        return self._answer(ANSWER_LIMIT_S)

    def close(self) -> None:
        """End the process, by asking first."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        alarm = threading.Timer(limit_s, self._process.kill)
        alarm.start()
        line = self._process.stdout.readline()
        alarm.cancel()
        if not line:
            self.close()
            code = self._process.returncode
            raise EngineFailedError(f"its process ended with {code}; see {self._log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.close()
            raise EngineFailedError(answer["error"])
        return answer


def environment(threads: int) -> dict[str, str]:
    """Of every worker: the same threads, and no look at the network."""
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
