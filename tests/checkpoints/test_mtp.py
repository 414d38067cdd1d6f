"""MTP layers inside a target: known by config.json, of use if they are whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
import torch

from neuron_spec.checkpoints.formats import mtp
from neuron_spec.checkpoints.identify import identify_target


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_the_layers_are_known(tmp_path: Path, copies: bool, count: int) -> None:
    target = identify_target(
        tiny_heads.write_mtp_target(tmp_path / "t", num_mtp_layers=count, copies=copies)
    )
    assert (target.missing, target.unexpected, target.misshapen) == ((), (), ())
    assert mtp.prefixes(target.config) == [f"model.layers.{2 + i}." for i in range(count)]


@pytest.mark.parametrize("said", [None, 0, -1, "1", 1.0, True, 17, 10**30])
def test_without_a_sensible_number_the_layers_are_unexpected(tmp_path: Path, said: Any) -> None:
    directory = tiny_heads.write_mtp_target(tmp_path / "t")
    change_config(directory, num_nextn_predict_layers=said)
    target = identify_target(directory)
    assert mtp.num_layers(target.config) == 0
    assert len(target.unexpected) == 9 + 4 + 2
    assert "model.layers.2.eh_proj.weight" in target.unexpected


def test_tensors_of_another_shape_are_told(tmp_path: Path) -> None:
    directory = tiny_heads.write_mtp_target(tmp_path / "t")
    tiny.change_tensors(directory, model__layers__2__eh_proj__weight=torch.ones(32, 32))
    found = identify_target(directory).misshapen
    assert found == (
        "model.layers.2.eh_proj.weight: found [32, 32], expected [32, 64] by config.json",
    )
