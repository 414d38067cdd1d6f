"""`verify` and `bench` against a server of another make, `transformers serve`, with its prompt
lookup off and on.

Written for transformers 4.57.6. What it lacks is what the two verbs have to cope with: it knows
conversations only, streams whatever it is asked for, tells no usage, no log-probabilities and no
metrics, names none of its models, and refuses fields that it does not know. Its speculation is
switched by a request's `generation_config`. Longer than a request's `max_tokens` its output may get
with prompt lookup: `verify` finds that.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from neuron_spec.checkpoints import demo_target
from neuron_spec.cli.main import cli
from neuron_spec.errors import DependencyError

VERSION = "4.57.6"
SPEC = Path(__file__).parents[2] / "compile/smollm2-135m.cpu.toml"
OFF = ("--off-body", json.dumps({"generation_config": "{}"}))
ON = json.dumps({"generation_config": json.dumps({"prompt_lookup_num_tokens": 4})})
PROMPTS = (
    "Write a Python function that returns the largest even number in a list of integers, or None "
    "if there is none. Include a docstring.",
    "Repeat this sentence three times: The train to Lyon leaves at nine from platform four.",
)
# With prompt lookup the 25th token of this one comes along with the 24th.
PAST_THE_LIMIT = (PROMPTS[0], 24)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target() -> Path:
    try:
        return demo_target.ensure("demo:smollm2-135m-instruct")
    except DependencyError as error:
        pytest.skip(f"no demo target: {error}")


@pytest.fixture(scope="module")
def server(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    version = importlib.metadata.version("transformers")
    if not version.startswith("4.57."):
        pytest.skip(f"transformers {version}: its server is another one than that of {VERSION}")
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("transformers serve is not installed: pip install 'transformers[serving]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from transformers.commands.transformers_cli import main; main()"
    options = {"host": "127.0.0.1", "port": port, "device": "cpu", "dtype": "float32"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with (tmp_path_factory.mktemp("serve") / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", *arguments],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=log,
            stderr=log,
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 400
    while True:
        assert process.poll() is None, "the server ended"
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.5)


@pytest.fixture
def run(server: str, tmp_path: Path) -> Callable[..., Result]:
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"messages": [{"role": "user", "content": text}]} for text in PROMPTS]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def call(*arguments: str | Path, file: Path = prompts) -> Result:
        return CliRunner().invoke(cli, [*map(str, arguments), "--prompts", str(file)])

    return call


def data(result: Result, exit_code: int = 0) -> Any:
    assert result.exit_code == exit_code, (result.output, result.exception)
    return json.loads(result.stdout)


def test_bench_with_prompt_lookup_off_and_on(run: Any, server: str, target: Path) -> None:
    arguments = ("bench", "--endpoint", f"{server}#{target}", "--body", ON, *OFF, "-n", "16")
    refused = run(*arguments)
    assert "tells no usage" in str(refused.exception)
    found = data(run(*arguments, "--tokenizer", target, "--repetitions", "2", "--json"))
    loads = {load["way"]: load for load in found["loads"]}
    assert set(loads) == {"off", "on"}
    for load in loads.values():
        assert (load["num_requests"], load["num_failed"]) == (4, 0)
        assert 0 < load["num_output_tokens"] <= 4 * 18
        assert load["ttft_s"]["p50"]["value"] < load["total_s"]["p50"]["value"]
        assert load["tpot_s"]["p50"]["value"] > 0
        assert load["acceptance"] is None
    first = found["prompts"][0]  # a text of 16 tokens, or one more with prompt lookup
    assert first["num_output_tokens"] in (15, 16, 17)
    assert found["speed_ups"][0]["throughput"]["num_samples"] == 2
    notes = " ".join(found["notes"])
    assert "tokenizing its text again" in notes
    assert "acceptance: not told" in notes
    assert found["record"]["precision"] == "not told"


@pytest.mark.parametrize("body", ["{}", ON])
def test_its_text_is_that_of_our_target(run: Any, server: str, target: Path, body: str) -> None:
    """16 tokens end inside no drafted block here; near-ties are judged by our own logits."""
    arguments = ("verify", f"{server}#{target}", "--against", f"{SPEC}@off", "--body", body)
    found = data(run(*arguments, "-n", "16", "--level", "1", "--json"))
    assert (found["held"], found["num_defects"], found["num_prompts"]) == (True, 0, 2)
    assert any("compared by text" in note for note in found["notes"])


def test_it_goes_past_the_limit_with_prompt_lookup(run: Any, server: str, target: Path) -> None:
    """On against off of the same server: one token too many, which `verify` finds at the end."""
    arguments = ("verify", f"{server}#{target}", "--body", ON, "--against-body", "{}")
    limit = ("-n", str(PAST_THE_LIMIT[1]), "--limit", "1", "--level", "1", "--json")
    (comparison,) = data(run(*arguments, *limit), exit_code=1)["comparisons"]
    divergence = comparison["divergences"][-1]
    assert (divergence["kind"], divergence["reference_token"]) == ("defect", "")
    assert divergence["candidate_token"] == '."""'


def test_level_3_by_length(run: Any, server: str, target: Path, tmp_path: Path) -> None:
    arguments = ("verify", f"{server}#{target}", "--against", f"{SPEC}@off", "--body", ON)
    result = run(*arguments, "-n", "8", "--level", "3", "--metric", "exact-match=0", "--json")
    assert "applies to no row" in str(result.exception)
    rows = tmp_path / "answers.jsonl"
    row = {"messages": [{"role": "user", "content": PROMPTS[1]}], "reference": "The"}
    rows.write_text("".join(json.dumps(row) + "\n" for _ in range(2)))
    metric = ("--metric", "exact-match=0", "-n", "4", "--level", "3", "--json")
    found = data(run(*arguments, *metric, file=rows))
    assert (found["level"], found["held"]) == (3, True)


def test_what_it_lacks_is_told(run: Any, server: str, target: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("Once upon a time\n")
    address = f"{server}#{target}"
    text = run("verify", address, "--against", f"{SPEC}@off", "--level", "1", "-n", "4", file=plain)
    assert "give prompts as `messages`" in str(text.exception)
    ends = run(
        "verify", address, "--against", f"{SPEC}@off", "--level", "1", "-n", "4", "--ignore-eos"
    )
    assert "Unexpected keys" in str(ends.exception)
    assert "ignore_eos" in str(ends.exception)
