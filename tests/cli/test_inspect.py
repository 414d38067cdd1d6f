"""`inspect` for a person: one screen; for a program: the same facts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
import torch
from safetensors.torch import load_file

import neuron_spec.cli.main as program

Inspect = Callable[..., dict[str, list[str]]]


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inspect:
    """Rows of the output: name -> its lines."""

    def call(directory: Path) -> dict[str, list[str]]:
        rows: dict[str, list[str]] = {}
        for line in run(directory).splitlines():
            name, _, value = line.strip().partition("  ")
            rows.setdefault(name, []).append(value)
        return rows

    def run(*arguments: str | Path) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["neuron-spec", "inspect", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            program.main()
        captured = capsys.readouterr()
        assert (caught.value.code, captured.err) == (0, "")
        return captured.out

    call.run = run  # type: ignore[attr-defined]
    return call


def test_a_published_head(inspect: Inspect, eagle_directory: Path) -> None:
    rows = inspect(eagle_directory)
    num_bytes = sum(
        tensor.numel() * 4 for tensor in load_file(eagle_directory / "model.safetensors").values()
    )
    assert rows == {
        "checkpoint": [str(eagle_directory)],
        "is": ["an EAGLE v1 draft head (EAGLE-2 shares the weights); family eagle, model_type "
               "llama"],
        "for target": ["not named in the files; must have hidden size 32, vocabulary 259"],
        "size": [f"{num_bytes // 4:,} parameters, {num_bytes / 1000:.1f} kB in 10 tensors "
                 "(10 x F32)"],
        "files": ["model.safetensors"],
        "shape": ["hidden 32, vocabulary 259, 1 layer(s), 4 heads, 2 kv heads, 256 positions"],
        "present": ["bias of fc (fc.bias)"],
        "absent": ["LM head, embedding, input norm"],
        "to prepare": [
            "copy lm_head.weight from the target (its LM head, or its tied embedding)",
            "copy embed_tokens.weight from the target",
            "write fc_bias: true (NxDI drops fc.bias otherwise)",
        ],
        "next": ["neuron-spec prepare SPEC, with this as draft.model"],
    }  # fmt: skip


def test_a_target(inspect: Inspect, target_directory: Path) -> None:
    rows = inspect(target_directory)
    assert rows["is"] == ["a language model; family causal-lm, model_type llama"]
    assert rows["ready"] == ["can be loaded as it is"]
    assert not rows.keys() & {"for target", "absent", "to prepare", "next", "not usable"}


def test_heads_without_a_transformer(inspect: Inspect, tmp_path: Path) -> None:
    rows = inspect(tiny_heads.write_medusa(tmp_path / "medusa", form="legacy"))
    assert rows["is"] == ["3 Medusa heads; family medusa, model_type medusa"]
    assert rows["shape"] == ["hidden 32, vocabulary of the target"]
    assert rows["for target"][0].endswith("must have hidden size 32")


def test_the_target_that_is_named(inspect: Inspect, tmp_path: Path) -> None:
    directory = tiny.write_eagle3(tmp_path / "eagle3", form="speculators")
    assert inspect(directory)["for target"] == [
        "some/target (config.json speculators_config.verifier.name_or_path); must have hidden "
        "size 32, vocabulary 259, at least 7 layers"
    ]


def test_what_is_wrong_comes_with_its_mend(inspect: Inspect, tmp_path: Path) -> None:
    directory = tiny.write_eagle(
        tmp_path / "eagle", num_hidden_layers=2, rope_scaling={"type": "yarn", "factor": 2.0}
    )
    torch.save({}, directory / "pytorch_model.bin")
    tensors = load_file(directory / "model.safetensors")
    tiny.change_tensors(directory, fc__bias=tensors["fc.bias"].half())
    rows = inspect(directory)
    assert rows["refused"] == ["num_hidden_layers: found 2, expected 1"]
    (error,) = rows["error"]
    assert "rope_scaling in config.json is of kind 'yarn'" in error and "(mend: use a" in error
    (warning,) = rows["warning"]
    assert "pytorch_model.bin beside it is not" in warning and "(mend: remove" in warning
    (info,) = rows["info"]
    assert info.startswith("dtypes are mixed: 1 x F16 (fc.bias)")
    assert rows["not usable"] == ["as it is, for the reasons above"]
    assert not rows.keys() & {"next", "ready"}


def test_it_stays_on_one_screen(inspect: Inspect, target_directory: Path) -> None:
    names = load_file(target_directory / "model.safetensors")
    gone: dict[str, Any] = {n.replace(".", "__"): None for n in names if "layers.1." in n}
    tiny.change_tensors(target_directory, **gone)
    missing = inspect(target_directory)["missing"]
    assert len(gone) == 9
    assert missing[4:] == ["and 5 more (--json lists all)"]
    assert len(inspect.run(target_directory).splitlines()) < 24  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (16_814_592, "16.8 MB"),
     (141_107_412_992, "141.1 GB")],
)  # fmt: skip
def test_sizes(num_bytes: int, text: str) -> None:
    from neuron_spec.cli.inspect import _size

    assert _size(num_bytes) == text


def test_the_same_facts_for_a_program(inspect: Inspect, eagle_directory: Path) -> None:
    from neuron_spec.checkpoints.description import describe

    text = inspect.run(eagle_directory, "--json")  # type: ignore[attr-defined]
    assert json.loads(text) == describe(eagle_directory).as_dict()
