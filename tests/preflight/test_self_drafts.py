"""What a target lacks to draft for itself, and what two vocabularies lack to draft across."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
import tiny_vocabularies
from safetensors.torch import load_file

from neuron_spec.preflight import Finding, check
from neuron_spec.spec import load_spec


def findings_of(folder: Path, **draft: Any) -> list[Finding]:
    sections: dict[str, dict[str, Any]] = {
        "target": {"model": "target"},
        "draft": draft,
        "shape": {"max_prompt_tokens": 32, "max_total_tokens": 64},
    }
    return check(load_spec(tiny.write_spec(folder / "build.toml", **sections)))


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


@pytest.mark.parametrize(("exit_layer", "expected"), [(1, []), (2, ["draft-exit-layer"])])
def test_the_exit_is_before_the_last_layer(
    tmp_path: Path, exit_layer: int, expected: list[str]
) -> None:
    tiny.write_target(tmp_path / "target")
    findings = findings_of(tmp_path, method="early-exit", exit_layer=exit_layer)
    assert codes(findings) == expected
    if expected:
        assert findings[0].severity == "error"
        assert "the target has 2 layers" in findings[0].message
        assert findings[0].remedy == "set draft.exit_layer to at most 1"


def test_a_target_without_mtp_layers(tmp_path: Path) -> None:
    tiny.write_target(tmp_path / "target")
    (finding,) = findings_of(tmp_path, method="mtp")
    assert (finding.code, finding.severity) == ("draft-mtp-none", "error")
    assert "num_nextn_predict_layers: None" in finding.message


def test_a_whole_mtp_layer_has_no_findings(tmp_path: Path) -> None:
    tiny_heads.write_mtp_target(tmp_path / "target")
    assert findings_of(tmp_path, method="mtp") == []
    assert findings_of(tmp_path, method="none") == []


def remove_attention(directory: Path) -> None:
    names = load_file(directory / "model.safetensors")
    gone = {n.replace(".", "__"): None for n in names if n.startswith("model.layers.2.self_attn")}
    tiny.change_tensors(directory, **gone)


def test_an_mtp_layer_of_another_kind_is_told_by_its_missing_tensors(tmp_path: Path) -> None:
    tiny_heads.write_mtp_target(tmp_path / "target")
    remove_attention(tmp_path / "target")
    (finding,) = findings_of(tmp_path, method="mtp")
    assert (finding.code, finding.severity) == ("draft-mtp-keys-missing", "error")
    assert "model.layers.2.* has no self_attn.k_proj.weight, self_attn.o_proj" in finding.message
    assert findings_of(tmp_path, method="none") == [], "a target needs no MTP layer"


def test_a_real_deepseek_is_refused_by_name(tmp_path: Path) -> None:
    """Once, by the target's kind: that its MTP layer has other tensors goes without saying."""
    tiny_heads.write_mtp_target(tmp_path / "target", model_type="deepseek_v3")
    remove_attention(tmp_path / "target")
    (finding,) = findings_of(tmp_path, method="mtp")
    assert (finding.code, finding.severity) == ("target-model-type", "error")
    assert "deepseek_v3" in finding.message


def test_of_several_mtp_layers_one_is_used(tmp_path: Path) -> None:
    tiny_heads.write_mtp_target(tmp_path / "target", num_mtp_layers=2)
    (finding,) = findings_of(tmp_path, method="mtp")
    assert (finding.code, finding.severity) == ("draft-mtp-layers-unused", "warning")


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    tiny.write_target(tmp_path / "target")
    tiny_vocabularies.write_translated(tmp_path / "draft", tmp_path / "target")
    return tmp_path


def of_intersection(folder: Path) -> list[Finding]:
    return findings_of(folder, method="model", model="draft", vocabulary="intersection")


def test_another_family_has_no_findings(pair: Path) -> None:
    assert of_intersection(pair) == []


def test_without_a_tokenizer_nothing_can_be_translated(pair: Path) -> None:
    (pair / "draft/tokenizer.json").unlink()
    (finding,) = of_intersection(pair)
    assert (finding.code, finding.severity) == ("draft-tokenizer-unknown", "error")


@pytest.mark.parametrize(
    ("num_shared", "code", "severity"),
    [(0, "draft-vocabulary-disjoint", "error"), (2, "draft-vocabulary-small", "warning")],
)
def test_too_few_shared_tokens(pair: Path, num_shared: int, code: str, severity: str) -> None:
    words = {f"word{index}": index for index in range(50 - num_shared)}
    shared = {token: 50 - num_shared + index for index, token in enumerate("ab"[:num_shared])}
    path = pair / "draft/tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["vocab"], data["added_tokens"] = words | shared, []
    path.write_text(json.dumps(data))
    (finding,) = of_intersection(pair)
    assert (finding.code, finding.severity) == (code, severity)
    assert f"share {num_shared} of the draft's 50 tokens" in finding.message
