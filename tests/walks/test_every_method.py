"""Every draft method walks the whole way: spec, prepare, check, compile, load, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
import tiny_vocabularies
from click.testing import CliRunner
from served import TestClient

from neuron_spec import check, compile_model, load, load_spec, prepare
from neuron_spec.artifacts import open_artifact
from neuron_spec.cli.main import cli
from neuron_spec.equivalence import compare_greedy
from neuron_spec.serving.app import create_app
from neuron_spec.spec.schema import DRAFT_METHODS, BuildSpec

DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "model": {"model": "draft"},
    "medusa": {"model": "medusa"},
    "hydra": {"model": "hydra"},
    "eagle": {"model": "eagle"},
    "eagle3": {"model": "eagle3"},
    "mtp": {},
    "early-exit": {"exit_layer": 3},
    "ngram": {"ngram_sizes": [1, 2]},
    "suffix": {"suffix_depth": 8, "suffix_answers": 2},
}
TARGETS = {"mtp": "target-mtp"}  # the target where the draft is a part of it


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny.write_target(tmp_path / "target", num_hidden_layers=8)
    tiny.write_target(tmp_path / "draft", seed=5, num_hidden_layers=1)
    tiny.write_eagle(tmp_path / "eagle")
    tiny_heads.write_medusa(tmp_path / "medusa")
    tiny_heads.write_hydra(tmp_path / "hydra")
    tiny.write_eagle3(tmp_path / "eagle3")
    tiny_heads.write_mtp_target(tmp_path / "target-mtp")
    return tmp_path


def write_spec(folder: Path, method: str, **changes: Any) -> Path:
    return tiny.write_spec(
        folder / f"{method}.toml",
        target={"model": TARGETS.get(method, "target")},
        draft={"method": method, "num_draft_tokens": 3, **DRAFTS[method], **changes},
        shape={"max_prompt_tokens": 32, "max_total_tokens": 64, "batch_size": 2},
    )


def test_every_method_is_walked() -> None:
    assert DRAFTS.keys() == set(DRAFT_METHODS)


@pytest.mark.parametrize("method", DRAFTS)
def test_walk(method: str, folder: Path) -> None:
    walk(load_spec(write_spec(folder, method)))


def test_walk_with_a_draft_model_of_another_family(folder: Path) -> None:
    tiny_vocabularies.write_translated(folder / "draft", folder / "target", merges=("abc",))
    spec = load_spec(write_spec(folder, "model", vocabulary="intersection"))
    walk(spec)
    same = load_spec(write_spec(folder, "model"))
    codes = {finding.code: finding.remedy for finding in check(same)}
    assert codes.keys() == {"draft-tokenizer", "draft-vocab-size"}
    assert all("'intersection'" in remedy for remedy in codes.values())


def test_walk_with_a_lookup_before_the_draft(folder: Path) -> None:
    path = write_spec(folder, "eagle")
    path.write_text(path.read_text() + "[draft.lookup]\nnum_draft_tokens = 6\n")
    spec = load_spec(path)
    walk(spec)
    directory = str(spec.build_directory / "artifact")
    told = CliRunner().invoke(cli, ["inspect", directory])
    assert "suffix lookup before eagle, k = 6" in told.output
    with TestClient(create_app(open_artifact(directory))) as client:
        (card,) = client.get("/v1/models").json()["data"]
    assert (card["draft_method"], card["lookup_method"]) == ("eagle", "suffix")


def walk(spec: BuildSpec) -> None:
    prepared = prepare(spec)
    assert check(spec, prepared) == check(spec) == []
    artifact = compile_model(spec, prepared)
    assert artifact.manifest.speculation == (spec.draft.method != "none")
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


@pytest.mark.parametrize("method", ["medusa", "hydra"])
def test_more_draft_tokens_than_heads_are_found(method: str, folder: Path) -> None:
    spec = tiny.write_spec(
        folder / "long.toml",
        target={"model": "target"},
        draft={"method": method, "model": method, "num_draft_tokens": 4},
        shape={"max_prompt_tokens": 32, "max_total_tokens": 64},
    )
    prepared = prepare(load_spec(spec))
    findings = check(load_spec(spec), prepared)
    assert [finding.code for finding in findings] == ["draft-length-beyond-heads"]
    assert "at most 3" in findings[0].remedy


def test_a_head_is_not_a_draft_model(folder: Path) -> None:
    spec = load_spec(
        tiny.write_spec(
            folder / "wrong.toml",
            target={"model": "target"},
            draft={"method": "model", "model": "eagle"},
        )
    )
    assert "draft-family" in [finding.code for finding in check(spec)]
