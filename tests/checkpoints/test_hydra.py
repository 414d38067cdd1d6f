"""Hydra and Hydra++ heads are recognised, get the target's embedding, and run in the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
import torch
from safetensors.torch import load_file

from neuron_spec.checkpoints import identify
from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.errors import CheckpointError

VARIANTS: dict[str, dict[str, Any]] = {
    "hydra": {},
    "ungrounded": {"grounded": False},
    "deep": {"num_layers": 3},
    "hydra++": {"arch": "prefix-mlp", "num_layers": 4, "num_heads": 4},
}
COPIES = {"input_embed_fn.weight", "prefix_embeding_layer.embed_tokens.weight"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target")


def write(tmp_path: Path, variant: str = "hydra", **changes: Any) -> Path:
    return tiny_heads.write_hydra(tmp_path / "hydra", **{**VARIANTS[variant], **changes})


def faults_of(draft: Path, target: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        prepare_draft(draft, target, draft.parent / "prepared")
    assert not (draft.parent / "prepared").exists()
    return str(caught.value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_recognised_and_completed(variant: str, tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, variant)
    identity = identify(draft)
    assert identity.family == "hydra"
    assert not (identity.missing or identity.unexpected or identity.misshapen)
    assert identity.preparation == ("copy embed_tokens.weight from the target",)
    prepare_draft(draft, target, tmp_path / "prepared")
    before = torch.load(draft / "hydra_lm_head.pt", weights_only=True)
    after = load_file(tmp_path / "prepared/model.safetensors")
    assert after.keys() == (before.keys() - COPIES) | {"embed_tokens.weight"}
    for name in before.keys() - COPIES:
        assert torch.equal(after[name], before[name]), name
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(after["embed_tokens.weight"], embedding)
    prepared = identify(tmp_path / "prepared")
    assert prepared.family == "hydra" and prepared.is_prepared
    config = json.loads((tmp_path / "prepared/config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"]) == (1, 259)
    assert config["hydra_head_arch"] == VARIANTS[variant].get("arch", "mlp")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hydra_head_arch": "eagle-attn"}, "hydra_head_arch is 'eagle-attn'"),
        ({"hidden_state_offset": 1}, "hidden_state_offset is 1"),
        ({"arch": "prefix-mlp", "grounded": False}, "grounded_heads is false with prefix-mlp"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    changes: dict[str, Any], expected: str, tmp_path: Path, target: Path
) -> None:
    text = faults_of(write(tmp_path, **changes), target)
    assert expected in text and "unexpected" not in text


def test_all_faults_are_in_one_error(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path)
    tensors = torch.load(draft / "hydra_lm_head.pt", weights_only=True)
    del tensors["hydra_mlp.1.0.res_connection.weight"]
    tensors["hydra_lm_head.2.bias"] = torch.zeros(3)
    tensors["surprise"] = torch.zeros(3)
    torch.save(tensors, draft / "hydra_lm_head.pt")
    text = faults_of(draft, target)
    assert "missing: hydra_mlp.1.0.res_connection.weight" in text
    assert "hydra_lm_head.2.bias: found [3], expected [259]" in text
    assert "unexpected: surprise" in text


def test_another_targets_heads_are_refused(tmp_path: Path) -> None:
    wide = tiny.write_target(tmp_path / "wide", hidden_size=64)
    assert "hidden_size: draft 32, target 64" in faults_of(write(tmp_path), wide)


def test_a_prefix_layer_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = tiny.write_target(tmp_path / "other", intermediate_size=96)
    text = faults_of(write(tmp_path, "hydra++"), other)
    assert "prefix_embeding_layer.layers.0.mlp.up_proj.weight: found [64, 32]" in text
