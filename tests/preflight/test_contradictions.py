"""Contradictions of checkpoints are findings, once each, with the role in the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from tiny import change_config

from neuron_spec.checkpoints import PreparedCheckpoint, prepare
from neuron_spec.preflight import Finding, check
from neuron_spec.spec import BuildSpec


def found(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in findings]


@pytest.fixture
def prepared(spec: BuildSpec) -> PreparedCheckpoint:
    return prepare(spec)


@pytest.fixture
def model_spec(spec: BuildSpec, tmp_path: Path) -> BuildSpec:
    """The target drafts for itself, from a directory of its own."""
    tiny.write_target(tmp_path / "small")
    draft = spec.draft.model_copy(update={"method": "model", "model": "small"})
    return spec.model_copy(update={"draft": draft})


def test_a_tied_head_that_differs(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    change_config(prepared.target, tie_word_embeddings=True)
    (finding,) = check(spec, prepared)
    assert (finding.code, finding.severity) == ("target-tied-head", "error")
    assert "differs from model.embed_tokens.weight" in finding.message
    assert "set tie_word_embeddings" in finding.remedy and "NxDI" in finding.source
    embedding = load_file(prepared.target / "model.safetensors")["model.embed_tokens.weight"]
    tiny.change_tensors(prepared.target, lm_head__weight=embedding.clone())
    assert found(check(spec, prepared)) == [("target-tied-head-stored", "info")]


def test_a_draft_model_is_looked_at_in_the_same_way(model_spec: BuildSpec, tmp_path: Path) -> None:
    assert check(model_spec) == []
    change_config(tmp_path / "small", tie_word_embeddings=True)
    torch.save({}, tmp_path / "small/pytorch_model.bin")
    assert found(check(model_spec)) == [
        ("draft-tied-head", "error"), ("draft-unread-files", "warning"),
    ]  # fmt: skip
    change_config(tmp_path / "small", tie_word_embeddings=False, quantization_config={"bits": 4})
    (finding, _) = check(model_spec)
    assert finding.code == "draft-quantized" and "quantization_config" in finding.message


def test_files_that_are_not_read(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    torch.save({}, prepared.target / "pytorch_model.bin")
    (finding,) = check(spec, prepared)
    assert (finding.code, finding.severity) == ("target-unread-files", "warning")
    assert "model.safetensors is read, pytorch_model.bin beside it is not" in finding.message


def test_another_padding_is_told_before_and_gone_after_preparation(
    spec: BuildSpec, tmp_path: Path
) -> None:
    tiny.write_eagle(tmp_path / "eagle", vocab_size=261)
    assert found(check(spec)) == [
        ("draft-unprepared", "error"), ("draft-vocab-size-adopted", "info"),
    ]  # fmt: skip
    prepare(spec)
    assert check(spec) == []


def test_another_vocabulary_is_told_once(spec: BuildSpec, tmp_path: Path) -> None:
    tiny.write_eagle(tmp_path / "eagle", vocab_size=300)
    findings = {finding.code: finding for finding in check(spec)}
    assert findings.keys() == {"draft-unprepared", "draft-vocab-size"}
    assert "another vocabulary" in findings["draft-vocab-size"].message


def test_a_quantized_target_is_not_computed(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    """One finding, not one for each of its packed layers."""
    change_config(prepared.target, quantization_config={"quant_method": "gptq"})
    tiny.change_tensors(prepared.target, model__layers__0__mlp__up_proj__weight=None)
    (finding,) = check(spec, prepared)
    assert (finding.code, finding.severity) == ("target-quantized", "error")
    assert "reference backend does not compute" in finding.message


def test_a_quantized_head(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    tiny.change_tensors(prepared.target, lm_head__weight_scale=torch.ones(1))
    codes = [code for code, _ in found(check(spec, prepared))]
    assert codes == ["target-quantized", "target-quantized-head"]


@pytest.mark.parametrize(
    ("draft_limit", "target_limit", "is_told"),
    [(64, 256, True), (95, 256, True), (96, 256, False), (64, 64, False)],
)
def test_a_draft_of_fewer_positions(
    spec: BuildSpec,
    prepared: PreparedCheckpoint,
    draft_limit: int,
    target_limit: int,
    is_told: bool,
) -> None:
    """max_total_tokens is 96; a target of fewer is an error of its own."""
    assert prepared.draft is not None
    change_config(prepared.draft, max_position_embeddings=draft_limit)
    change_config(prepared.target, max_position_embeddings=target_limit)
    findings = [f for f in check(spec, prepared) if f.code == "draft-positions"]
    assert [finding.severity for finding in findings] == (["warning"] if is_told else [])
    assert all(f"max_position_embeddings {draft_limit}" in f.message for f in findings)


def test_another_rope_theta(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    change_config(prepared.target, rope_theta=5e5)
    (finding,) = check(spec, prepared)
    assert (finding.code, finding.severity) == ("draft-rope-theta", "info")
    assert "rope_theta: draft 10000, target 500000" in finding.message


# Vocabularies of a draft model


def test_only_the_padding_differs(model_spec: BuildSpec, tmp_path: Path) -> None:
    tiny.write_target(tmp_path / "small", vocab_size=300)
    (finding,) = check(model_spec)
    assert (finding.code, finding.severity) == ("draft-vocab-size", "error")
    assert "vocab_size: draft 300, target 259" in finding.message
    assert "only the padding differs: both have the same tokenizer, of 259 ids" in finding.message
    assert "to 300 rows" in finding.remedy and "mean of the others" in finding.remedy


def test_rows_that_do_not_hold_the_tokenizer_are_not_padding(
    model_spec: BuildSpec, tmp_path: Path
) -> None:
    tiny.write_target(tmp_path / "small", vocab_size=250)
    (finding,) = check(model_spec)
    assert finding.code == "draft-vocab-size" and "padding" not in finding.message


def test_another_size_without_the_tokenizer_is_not_called_padding(
    model_spec: BuildSpec, tmp_path: Path
) -> None:
    tiny.write_target(tmp_path / "small", vocab_size=300)
    (tmp_path / "small/tokenizer.json").unlink()
    findings = {finding.code: finding for finding in check(model_spec)}
    assert findings.keys() == {"draft-vocab-size", "draft-tokenizer-unknown"}
    assert "padding" not in findings["draft-vocab-size"].message


def test_another_tokenizer_is_counted(model_spec: BuildSpec, tmp_path: Path) -> None:
    path = tmp_path / "small/tokenizer.json"
    data = json.loads(path.read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    ids = vocabulary["A"], vocabulary["B"]
    path.write_text(json.dumps(data))
    (finding,) = check(model_spec)
    assert (finding.code, finding.severity) == ("draft-tokenizer", "error")
    assert finding.message == (
        "draft and target give different ids to 2 of 259 tokens, the first is 'A' "
        f"(draft {ids[0]}, target {ids[1]}), so drafts would be nonsense"
    )


def test_a_token_that_only_one_has(model_spec: BuildSpec, tmp_path: Path) -> None:
    path = tmp_path / "small/tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["vocab"]["more"] = 258 + 1
    path.write_text(json.dumps(data))
    (finding,) = check(model_spec)
    assert "to 1 of 259 tokens, the first is 'more' (draft 259, target none)" in finding.message
