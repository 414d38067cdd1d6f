"""Warming up: whatever a first request would wait for has been made before it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_tokenizers
from conftest import WordTokenizer

from neuron_spec import compile_model, load_spec, prepare
from neuron_spec.backends.base import Limits
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine.session import Session
from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.engine.warmup import warm_up
from neuron_spec.errors import RequestError

LIMITS = Limits(batch_size=2, max_prompt_tokens=64, max_total_tokens=96, num_draft_tokens=2)
CONVERSATION = [{"role": "user", "content": "The sea"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm")
    tiny.write_eagle(folder / "eagle")
    slow = tiny.write_target(folder / "slow")
    # What this setting does, only transformers can tell.
    tiny_tokenizers.change(slow / "tokenizer_config.json", unheard_of=True)
    tiny.write_target(folder / "plain")
    for name in ("slow", "plain"):
        path = tiny.write_spec(
            folder / f"{name}.toml",
            target={"model": name},
            draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
            shape={"max_prompt_tokens": 64, "max_total_tokens": 96, "batch_size": 2},
        )
        spec = load_spec(path)
        compile_model(spec, prepare(spec, folder / f"{name}-draft"), folder / f"{name}.artifact")
    return folder


def run(code: str, *arguments: str) -> Any:
    """What a new process prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


GENERATE = """
import json, sys, neuron_spec
session = neuron_spec.load(sys.argv[1])
for prompt in ("The sea", [{"role": "user", "content": "The sea"}]):
    session.generate(prompt, max_new_tokens=4, logprobs=1)
seldom = ("neuron_spec.backends.reference.nxdi", "transformers", "xgrammar", "pandas", "scipy")
print(json.dumps([name for name in seldom if name in sys.modules]))
"""


def test_a_session_needs_nothing_heavy_but_torch(folder: Path) -> None:
    assert run(GENERATE, str(folder / "plain.artifact")) == []
    # What the other way imports is seen by the same means.
    assert "transformers" in run(GENERATE, str(folder / "slow.artifact"))


def test_until_a_model_is_loaded_nothing_needs_torch() -> None:
    """So that memory can be made ready while it is imported."""
    opening = "neuron_spec.engine, neuron_spec.backends.reference.build"
    code = f"import json, sys, {opening}; print(json.dumps('torch' in sys.modules))"
    assert run(code) is False


SERVE = """
import json, sys, warnings
from neuron_spec.artifacts import open_artifact
from neuron_spec.engine import open_session
from neuron_spec.engine.warmup import warm_up
from neuron_spec.serving.app import create_app
warnings.simplefilter("ignore")
from fastapi.testclient import TestClient

artifact = open_artifact(sys.argv[1])
session = open_session(artifact)
if sys.argv[2] == "warm":
    warm_up(session)
with TestClient(create_app(artifact, session=session, model_name="tiny")) as client:
    client.get("/health").raise_for_status()
    before = set(sys.modules)
    text = {"model": "tiny", "prompt": "The sea", "max_tokens": 4, "logprobs": 1}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "The sea"}], "max_tokens": 4}
    for path, body in (("completions", text), ("chat/completions", chat)):
        for stream in (False, True):
            client.post(f"/v1/{path}", json={**body, "stream": stream}).raise_for_status()
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(json.dumps([sorted(new), "transformers" in before, "xgrammar" in sys.modules]))
"""


@pytest.mark.parametrize("way", ["plain", "slow"])
def test_the_first_request_of_a_warm_server_imports_nothing(folder: Path, way: str) -> None:
    new, knows_transformers, knows_grammars = run(SERVE, str(folder / f"{way}.artifact"), "warm")
    assert new == []
    assert knows_transformers == (way == "slow")
    assert not knows_grammars  # the vocabulary is read where a request asks for a format


def test_without_warming_up_it_does(folder: Path) -> None:
    """So that the test above sees what a request imports."""
    new, knows_transformers, _ = run(SERVE, str(folder / "slow.artifact"), "cold")
    assert "transformers" in new and not knows_transformers


class Noted(WordTokenizer):
    """Notes what is asked of it."""

    def __init__(self, refuses: bool = False) -> None:
        self.asked: list[str] = []
        self._refuses = refuses

    def encode(self, prompt: object) -> tuple[int, ...]:
        is_text = isinstance(prompt, str)
        self.asked.append("text" if is_text else "chat")
        if not is_text and self._refuses:
            raise RequestError("no chat template", field="messages")
        return super().encode(prompt)

    def decode(self, token_ids: Sequence[int]) -> str:
        self.asked.append("ids")
        return super().decode(token_ids)

    def vocabulary(self) -> list[bytes]:
        raise AssertionError("only grammars need it")


@pytest.mark.parametrize("refuses", [False, True])
def test_text_and_conversations_are_tried_once(refuses: bool) -> None:
    tokenizer = Noted(refuses)
    warm_up(Session(ScriptedSpeculator({(1,): [1] * 90}, limits=LIMITS), tokenizer))
    assert sorted(tokenizer.asked) == ["chat", "ids", "text"]


def test_an_error_that_is_no_refusal_is_told() -> None:
    class Broken(Noted):
        def encode(self, prompt: Prompt) -> tuple[int, ...]:  # type: ignore[override]
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        warm_up(Session(ScriptedSpeculator({(1,): [1] * 90}, limits=LIMITS), Broken()))
