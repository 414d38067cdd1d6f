"""Every draft method walks the whole way: spec, prepare, check, compile, load, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny

from neuron_spec import check, compile_model, load, load_spec, prepare
from neuron_spec.equivalence import compare_greedy
from neuron_spec.spec.schema import DRAFT_METHODS

DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "model": {"model": "draft"},
    "eagle": {"model": "eagle"},
    "eagle3": {"model": "eagle3"},
    "ngram": {"ngram_sizes": [1, 2]},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny.write_target(tmp_path / "target", num_hidden_layers=8)
    tiny.write_target(tmp_path / "draft", seed=5, num_hidden_layers=1)
    tiny.write_eagle(tmp_path / "eagle")
    tiny.write_eagle3(tmp_path / "eagle3")
    return tmp_path


def write_spec(folder: Path, method: str) -> Path:
    return tiny.write_spec(
        folder / f"{method}.toml",
        target={"model": "target"},
        draft={"method": method, "num_draft_tokens": 3, **DRAFTS[method]},
        shape={"max_prompt_tokens": 32, "max_total_tokens": 64, "batch_size": 2},
    )


def test_every_method_is_walked() -> None:
    assert DRAFTS.keys() == set(DRAFT_METHODS)


@pytest.mark.parametrize("method", DRAFTS)
def test_walk(method: str, folder: Path) -> None:
    spec = load_spec(write_spec(folder, method))
    prepared = prepare(spec)
    assert check(spec, prepared) == check(spec) == []
    artifact = compile_model(spec, prepared)
    assert artifact.manifest.speculation == (method != "none")
    session = load(artifact.directory)
    prompts = ["abcabcabc", "x", [{"role": "user", "content": "hi"}]]
    comparisons = compare_greedy(session, prompts, max_new_tokens=24, near_tie_margin=0.0)
    assert [comparison.divergence for comparison in comparisons] == [None] * 3


def test_a_draft_model_of_another_vocabulary_is_found(folder: Path) -> None:
    tiny.write_target(folder / "draft", vocab_size=300, num_hidden_layers=1)
    findings = check(load_spec(write_spec(folder, "model")))
    assert [finding.code for finding in findings] == ["draft-vocab-size"]


def test_a_draft_model_with_another_tokenizer_is_found(folder: Path) -> None:
    spec, tokenizer = load_spec(write_spec(folder, "model")), folder / "draft/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a":', '"A2":'))
    assert [finding.code for finding in check(spec)] == ["draft-tokenizer"]
    tokenizer.unlink()
    found = [(finding.code, finding.severity) for finding in check(spec)]
    assert found == [("draft-tokenizer-unknown", "warning")]


def test_a_head_is_not_a_draft_model(folder: Path) -> None:
    spec = load_spec(
        tiny.write_spec(
            folder / "wrong.toml",
            target={"model": "target"},
            draft={"method": "model", "model": "eagle"},
        )
    )
    assert "draft-family" in [finding.code for finding in check(spec)]
