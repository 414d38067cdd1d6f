"""What the tests of contradictions share: one found, a decision recorded, a preparation refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file

from neuron_spec.checkpoints.contradictions import Contradiction
from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.errors import CheckpointError


def change_dtypes(directory: Path, dtype: torch.dtype, *names: str) -> None:
    tensors = load_file(directory / "model.safetensors")
    tiny.change_tensors(
        directory, **{name.replace(".", "__"): tensors[name].to(dtype) for name in names}
    )


def only(found: list[Contradiction]) -> Contradiction:
    assert len(found) == 1, found
    return found[0]


def decisions(draft: Path, target: Path, output: Path) -> list[str]:
    """What prepare recorded beyond its steps."""
    prepare_draft(draft, target, output)
    record = json.loads((output / "prepared.json").read_text())
    return [d for d in record["decisions"] if d.startswith(("draft: ", "target: "))]


def refusal(draft: Path, target: Path, output: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        prepare_draft(draft, target, output)
    assert not output.exists()
    return caught.value
