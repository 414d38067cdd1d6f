"""One directory alone: what it is, for which target, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
import torch
from tiny import change_config

from neuron_spec.checkpoints.description import Description, describe
from neuron_spec.checkpoints.formats import FORMATS
from neuron_spec.checkpoints.prepare import prepare_draft


@pytest.mark.parametrize(
    ("write", "title"),
    [
        (tiny.write_target, "a language model"),
        (tiny.write_eagle, "an EAGLE v1 draft head (EAGLE-2 shares the weights)"),
        (tiny.write_eagle3, "an EAGLE-3 draft head"),
        (tiny_heads.write_medusa, "3 Medusa heads"),
    ],
)
def test_what_it_is(tmp_path: Path, write: Callable[[Path], Path], title: str) -> None:
    assert describe(write(tmp_path / "m")).title == title


def test_every_family_has_a_title(tmp_path: Path) -> None:
    from neuron_spec.checkpoints.description import _TITLES

    assert {form.FAMILY for form in FORMATS} == _TITLES.keys()


def test_parts_of_each_family(tmp_path: Path) -> None:
    eagle = describe(tiny.write_eagle(tmp_path / "eagle"))
    assert eagle.present == ("bias of fc (fc.bias)",)
    assert eagle.absent == ("LM head", "embedding", "input norm")
    eagle3 = describe(tiny.write_eagle3(tmp_path / "eagle3"))
    assert eagle3.present == (
        "LM head (lm_head.weight)", "vocabulary map (d2t, t2d)", "final norm (norm.weight)",
        "input norm (layers.0.input_layernorm.weight)",
    )  # fmt: skip
    assert eagle3.absent == ("embedding", "bias of fc")
    target = describe(tiny.write_target(tmp_path / "target", tie_word_embeddings=True))
    assert target.present == (
        "embedding (model.embed_tokens.weight)", "final norm (model.norm.weight)",
    )  # fmt: skip
    assert target.absent == ("LM head (tied to the embedding)",)


# For which target


def test_targets_that_the_files_name(tmp_path: Path) -> None:
    directory = tiny.write_eagle(tmp_path / "eagle", base_model_name_or_path="some/base")
    assert describe(directory).named_targets == (
        ("config.json base_model_name_or_path", "some/base"),
    )
    directory = tiny.write_eagle3(tmp_path / "eagle3", form="speculators")
    assert describe(directory).named_targets == (
        ("config.json speculators_config.verifier.name_or_path", "some/target"),
    )


def test_a_prepared_head_names_the_target_it_was_prepared_for(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    prepare_draft(eagle_directory, target_directory, tmp_path / "out")
    description = describe(tmp_path / "out")
    assert description.named_targets == (("prepared.json", str(target_directory)),)
    assert description.identity.is_prepared and description.is_usable
    (tmp_path / "out/prepared.json").write_text('{"sources": 3}')
    assert describe(tmp_path / "out").named_targets == ()


@pytest.mark.parametrize("hint", [3, "", None, {"verifier": 1}, {"verifier": {"name_or_path": []}}])
def test_hints_of_another_kind_are_no_hints(eagle_directory: Path, hint: Any) -> None:
    change_config(eagle_directory, base_model_name_or_path=hint, speculators_config=hint)
    assert describe(eagle_directory).named_targets == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"target_hidden_size": 64}, {"hidden_size": 64}),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}},
         {"num_hidden_layers": 8}),
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, {"num_hidden_layers": 32}),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, {}),
        ({"eagle_aux_hidden_state_layer_ids": "2"}, {}),
    ],
)  # fmt: skip
def test_what_a_target_must_have(
    tmp_path: Path, changes: dict[str, Any], expected: dict[str, int]
) -> None:
    directory = tiny.write_eagle3(tmp_path / "eagle3")
    change_config(directory, **changes)
    needs = {"hidden_size": 32, "vocab_size": 259, **expected}
    if "num_hidden_layers" not in expected:
        needs["min_num_hidden_layers"] = 7
    assert describe(directory).needed_of_target == needs


def test_a_language_model_needs_no_target(target_directory: Path) -> None:
    change_config(target_directory, base_model_name_or_path="some/base")
    description = describe(target_directory)
    assert (description.needed_of_target, description.named_targets) == ({}, ())


def test_heads_without_a_vocabulary_ask_for_none(tmp_path: Path) -> None:
    directory = tiny_heads.write_medusa(tmp_path / "medusa", form="legacy")
    assert describe(directory).needed_of_target == {"hidden_size": 32}


# What is wrong


def test_a_published_head_is_usable_and_to_be_prepared(eagle_directory: Path) -> None:
    description = describe(eagle_directory)
    assert description.is_usable and not description.identity.is_prepared
    assert (description.contradictions, description.refusals) == ((), ())


def _missing(directory: Path) -> None:
    tiny.change_tensors(directory, layers__0__mlp__up_proj__weight=None)


def _unexpected(directory: Path) -> None:
    tiny.change_tensors(directory, extra=torch.ones(1))


def _misshapen(directory: Path) -> None:
    tiny.change_tensors(directory, fc__bias=torch.ones(3))


def _refused(directory: Path) -> None:
    change_config(directory, num_hidden_layers=2)


def _contradictory(directory: Path) -> None:
    change_config(directory, quantization_config={"quant_method": "fp8"})


@pytest.mark.parametrize("spoil", [_missing, _unexpected, _misshapen, _refused, _contradictory])
def test_each_fault_alone_makes_it_unusable(
    eagle_directory: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(eagle_directory)
    assert not describe(eagle_directory).is_usable


def test_remarks_do_not(eagle_directory: Path, target_directory: Path) -> None:
    for directory in (eagle_directory, target_directory):
        torch.save({}, directory / "pytorch_model.bin")
    tiny.change_tensors(target_directory, extra=torch.ones(1))
    for directory in (eagle_directory, target_directory):
        description = describe(directory)
        assert [item.code for item in description.contradictions] == ["unread-files"]
        assert description.is_usable


def test_as_plain_data(tmp_path: Path) -> None:
    directory = tiny.write_eagle3(tmp_path / "eagle3", form="speculators")
    change_config(directory, norm_before_residual=True)
    torch.save({}, directory / "pytorch_model.bin")
    description: Description = describe(directory)
    data = json.loads(json.dumps(description.as_dict()))
    assert data.items() >= description.identity.as_dict().items()
    assert data["title"] == description.title and data["is_usable"] is False
    assert data["present"] == list(description.present)
    assert data["absent"] == ["embedding", "bias of fc"]
    assert data["named_targets"] == [
        {"field": "config.json speculators_config.verifier.name_or_path", "target": "some/target"}
    ]
    assert data["needed_of_target"]["min_num_hidden_layers"] == 7
    assert [item["code"] for item in data["contradictions"]] == ["unread-files"]
    assert data["refusals"] == [
        {
            "code": "norm-before-residual",
            "message": "norm_before_residual is true: NxDI has no such norm",
        }
    ]
    file_bytes = (directory / "model.safetensors").stat().st_size
    assert 0 < data["num_bytes"] < file_bytes < data["num_bytes"] + 4096
