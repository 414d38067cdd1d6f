"""An EAGLE v1 head that early releases of speculators converted becomes the authors' head again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import tiny_heads
import torch
from safetensors.torch import load_file, save_file

from neuron_spec.checkpoints import identify
from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.errors import CheckpointError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target")


def test_it_is_recognised(tmp_path: Path) -> None:
    identity = identify(tiny_heads.write_speculators_eagle(tmp_path / "draft"))
    assert identity.family == "eagle"
    assert not (identity.missing or identity.unexpected or identity.misshapen)
    assert identity.refusals() == []
    assert "write config.json flat" in " ".join(identity.preparation)


def test_it_becomes_what_the_authors_form_becomes(tmp_path: Path, target: Path) -> None:
    theirs = tiny_heads.write_speculators_eagle(tmp_path / "theirs")
    authors = tiny.write_eagle(tmp_path / "authors")
    prepare_draft(theirs, target, tmp_path / "a")
    prepare_draft(authors, target, tmp_path / "b")
    found, expected = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in "ab"]
    deciding = ("fc_bias", "num_hidden_layers", "hidden_size", "rope_theta", "tie_word_embeddings")
    assert [configs[0][name] for name in deciding] == [configs[1][name] for name in deciding]
    assert not {"speculators_model_type", "layernorms", "fusion_bias"} & configs[0].keys()
    identity = identify(tmp_path / "a")
    assert identity.is_prepared


@pytest.mark.parametrize("norm", ["embedding_layernorm.weight", "pre_lm_head_layernorm.weight"])
def test_norms_that_nxdi_has_not_are_refused(norm: str, tmp_path: Path, target: Path) -> None:
    draft = tiny_heads.write_speculators_eagle(tmp_path / "draft", layernorms=True)
    tensors = load_file(draft / "model.safetensors")
    save_file({**tensors, norm: torch.ones(32)}, draft / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{norm}: NxDI has no norm there"):
        prepare_draft(draft, target, tmp_path / "out")
