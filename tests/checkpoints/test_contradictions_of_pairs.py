"""Vocabulary sizes and rotary positions of a draft head and its target that are not the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from contradictory import decisions, only, refusal
from safetensors.torch import load_file
from tiny import change_config

from neuron_spec.checkpoints import identify
from neuron_spec.checkpoints.contradictions import adopt_vocabulary, of_checkpoint, of_pair

HEAD = "lm_head.weight"


# Vocabularies


@pytest.mark.parametrize("size", [260, 261])
def test_another_padding_is_adopted(target_directory: Path, tmp_path: Path, size: int) -> None:
    """No tensor of a published EAGLE v1 head has the vocabulary's size."""
    draft = tiny.write_eagle(tmp_path / "eagle", vocab_size=size)
    (decision,) = decisions(draft, target_directory, tmp_path / "out")
    assert f"vocab_size: draft {size}, target 259; no tensor of the draft depends" in decision
    assert "the target's tokenizer uses 259 ids" in decision and "target's is taken" in decision
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 259
    assert identify(tmp_path / "out").misshapen == ()


def test_padding_without_a_tokenizer_says_so(target_directory: Path, tmp_path: Path) -> None:
    (target_directory / "tokenizer.json").unlink()
    draft = tiny.write_eagle(tmp_path / "eagle", vocab_size=258)
    (decision,) = decisions(draft, target_directory, tmp_path / "out")
    assert f"without tokenizer.json in {target_directory}" in decision


@pytest.mark.parametrize("size", [258, 300, 40, 2590])
def test_another_vocabulary_is_refused(target_directory: Path, tmp_path: Path, size: int) -> None:
    """258 rows do not hold 259 ids; the others are further away than padding goes."""
    draft = tiny.write_eagle(tmp_path / "eagle", vocab_size=size)
    found = only(of_pair(identify(draft), identify(target_directory)))
    assert (found.code, found.severity) == ("vocab-size", "error")
    error = refusal(draft, target_directory, tmp_path / "out")
    assert f"vocab_size: draft {size}, target 259; this is another vocabulary" in str(error)
    assert str(error).count("vocab_size") == 1
    assert error.mend == "use the draft that was trained for this target"


def test_rows_for_every_id_are_refused_with_the_reason(
    target_directory: Path, tmp_path: Path
) -> None:
    draft = tiny.write_eagle(tmp_path / "eagle", vocab_size=261)
    tiny.change_tensors(draft, embed_tokens__weight=torch.ones(261, 32))
    error = refusal(draft, target_directory, tmp_path / "out")
    assert "looks like another padding of the same vocabulary" in str(error)
    assert "holds a row for every id: embed_tokens.weight" in str(error)
    assert "259 rows" in str(error.mend)


def test_an_eagle3_head_adopts_the_size_it_is_widened_to(tmp_path: Path) -> None:
    """Without t2d only the width of the widened head depends on it."""
    target = tiny.write_target(tmp_path / "target", num_hidden_layers=8, vocab_size=261)
    draft = tiny.write_eagle3(tmp_path / "eagle3")
    error = refusal(draft, target, tmp_path / "out")
    assert "holds a row for every id: t2d" in str(error)
    assert adopt_vocabulary(identify(draft), identify(target)).config.vocab_size == 259
    tiny.change_tensors(draft, t2d=None)
    adopted = adopt_vocabulary(identify(draft), identify(target))
    assert any("from 97 to 261 rows" in step for step in adopted.preparation)
    assert len(decisions(draft, target, tmp_path / "out")) == 1
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert tensors[HEAD].shape == tensors["embed_tokens.weight"].shape == (261, 32)
    record = json.loads((tmp_path / "out/prepared.json").read_text())
    assert any("from 97 to 261 rows" in decision for decision in record["decisions"])


# Rotary positions and dtypes


def test_another_rope_is_kept_and_told(target_directory: Path, tmp_path: Path) -> None:
    change_config(target_directory, rope_theta=500000.0, max_position_embeddings=512)
    scaling = {"type": "linear", "factor": 2.0}
    draft = tiny.write_eagle(tmp_path / "eagle", rope_scaling=scaling)
    found = {item.code: item for item in of_pair(identify(draft), identify(target_directory))}
    assert found.keys() == {"rope-theta", "rope-scaling-differs", "positions"}
    assert {item.severity for item in found.values()} == {"info"}
    prepared = decisions(draft, target_directory, tmp_path / "out")
    assert prepared == [
        "draft: rope_scaling in config.json is of kind 'linear': NxDI computes it with "
        "transformers' module, about whose precision on Neuron its code warns",
        "draft: rope_theta: draft 10000, target 500000; the draft's is kept, as heads are trained "
        "with their own",
        "draft: rope_scaling: draft {'rope_type': 'linear', 'factor': 2.0}, target default; the "
        "draft's is kept, as heads are trained with their own",
        "draft: max_position_embeddings: draft 256, target 512; the draft's is kept, NxDI computes "
        "positions beyond it as well: past 256 acceptance may fall, the output stays the target's",
    ]
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["rope_theta"], config["rope_scaling"]) == (10000.0, scaling)


@pytest.mark.parametrize("form", ["eagle", "authors", "speculators"])
def test_a_rope_theta_that_is_not_there_is_told(tmp_path: Path, form: str) -> None:
    """Also in the nested form, where transformers fills it in."""
    target = tiny.write_target(tmp_path / "target", num_hidden_layers=8)
    if form == "eagle":
        draft = tiny.write_eagle(tmp_path / "draft")
    else:
        draft = tiny.write_eagle3(tmp_path / "draft", form=form)
    path = draft / "config.json"
    path.write_text(path.read_text().replace('"rope_theta": 10000.0,', ""))
    (decision,) = decisions(draft, target, tmp_path / "out")
    assert decision.startswith(
        "draft: rope_theta: draft 10000 (transformers' default; its config.json has none), "
        "target 10000"
    )
    assert json.loads((tmp_path / "out/config.json").read_text())["rope_theta"] == 10000.0


def test_the_same_rope_in_other_words_is_the_same(target_directory: Path, tmp_path: Path) -> None:
    change_config(target_directory, rope_scaling={"rope_type": "linear", "factor": 2.0})
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    draft = tiny.write_eagle(tmp_path / "eagle", rope_parameters=rope)
    change_config(draft, rope_theta=...)
    assert of_pair(identify(draft), identify(target_directory)) == []


def test_a_scaling_that_is_refused_is_not_told_twice(
    target_directory: Path, eagle_directory: Path
) -> None:
    change_config(target_directory, rope_scaling={"rope_type": "yarn", "factor": 2.0})
    assert of_pair(identify(eagle_directory), identify(target_directory)) == []


def test_a_default_scaling_is_written_as_none(target_directory: Path, tmp_path: Path) -> None:
    """NxDI would take transformers' module for it."""
    draft = tiny.write_eagle(tmp_path / "eagle", rope_scaling={"rope_type": "default"})
    assert decisions(draft, target_directory, tmp_path / "out") == []
    assert json.loads((tmp_path / "out/config.json").read_text())["rope_scaling"] is None


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope"])
def test_a_scaling_that_is_not_computed_is_refused(
    target_directory: Path, tmp_path: Path, kind: str
) -> None:
    draft = tiny.write_eagle(tmp_path / "eagle", rope_scaling={"type": kind, "factor": 2.0})
    error = refusal(draft, target_directory, tmp_path / "out")
    assert f"rope_scaling in config.json is of kind '{kind}'" in str(error)
    assert "linear, llama3" in str(error.mend)


LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_type": "qwen3", "rope_scaling": {"type": "linear", "factor": 2.0}},
         "rope-scaling-unread"),
        ({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
         "rope-scaling-linear"),
        ({"rope_theta": ..., "rope_parameters": {"rope_theta": 5e5}}, "rope-parameters"),
        ({"rope_theta": ..., "rope_parameters": {"rope_theta": 1e4}}, None),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}}, None),
        ({"rope_parameters": LLAMA3}, "rope-parameters"),
        ({"rope_parameters": LLAMA3, "rope_scaling": LLAMA3}, None),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, None),  # an error of its own
        ({"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, None),
    ],
)  # fmt: skip
def test_settings_of_a_target_that_nxdi_does_not_read(
    target_directory: Path, changes: dict[str, Any], code: str | None
) -> None:
    change_config(target_directory, **changes)
    found = of_checkpoint(identify(target_directory))
    assert [(item.code, item.severity) for item in found] == ([(code, "warning")] if code else [])


@pytest.mark.parametrize("role", ["draft", "target"])
def test_two_thetas_are_refused(
    target_directory: Path, eagle_directory: Path, tmp_path: Path, role: str
) -> None:
    directory = {"draft": eagle_directory, "target": target_directory}[role]
    change_config(directory, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    found = only(of_checkpoint(identify(directory)))
    assert (found.code, found.severity) == ("two-rope-thetas", "error")
    error = refusal(eagle_directory, target_directory, tmp_path / "out")
    assert "rope_theta: 10000 and rope_parameters.rope_theta: 500000" in str(error)
    assert "keep the one" in str(error.mend)


def test_a_nested_theta_in_the_new_form_is_read(tmp_path: Path) -> None:
    """transformers 4 would fill in its default beside it."""
    draft = tiny.write_eagle3(tmp_path / "draft", form="speculators")
    path = draft / "config.json"
    new = '"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},'
    path.write_text(path.read_text().replace('"rope_theta": 10000.0,', new))
    assert identify(draft).config.rope_theta == 500000.0
    assert of_checkpoint(identify(draft)) == []


@pytest.mark.skipif(transformers.__version__ >= "5", reason="NxDI 0.9 uses transformers 4.57")
def test_transformers_4_reads_no_rope_parameters(target_directory: Path) -> None:
    change_config(target_directory, rope_theta=..., rope_parameters={"rope_theta": 5e5})
    assert transformers.AutoConfig.from_pretrained(target_directory).rope_theta == 10000.0
