"""Fixtures that several rooms use."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# Tiny models gain nothing from threads and lose much where other programs use the cores. Set before
# torch is imported, and inherited by the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))  # so that `import tiny` works

import tiny

from neuron_spec.spec import BuildSpec, load_spec

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def target_directory(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target")


@pytest.fixture
def eagle_directory(tmp_path: Path) -> Path:
    return tiny.write_eagle(tmp_path / "eagle")


@pytest.fixture
def spec_path(tmp_path: Path, target_directory: Path, eagle_directory: Path) -> Path:
    """A build spec of the tiny target with the tiny EAGLE head, beside them."""
    return tiny.write_spec(
        tmp_path / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 64, "max_total_tokens": 96, "batch_size": 2},
    )


@pytest.fixture
def spec(spec_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildSpec:
    """The same, loaded; the current folder is the test's own, so that `build/` lands there."""
    monkeypatch.chdir(tmp_path)
    return load_spec(spec_path)


class WordTokenizer:
    """Ids as words: for tests of the engine that need no files. Id 2 ends an output."""

    stop_token_ids = frozenset({2})

    def encode(self, prompt: object) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(int(word) for word in prompt.split())
        parts = list(prompt)  # type: ignore[call-overload]
        if parts and isinstance(parts[0], dict):
            return tuple(int(word) for m in parts for word in m["content"].split())
        return tuple(parts)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return f"{token_id} ".encode()


@pytest.fixture
def word_tokenizer() -> WordTokenizer:
    return WordTokenizer()
