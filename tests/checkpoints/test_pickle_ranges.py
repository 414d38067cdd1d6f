"""Values in a pickle as byte ranges of the file, or not at all."""

from __future__ import annotations

import shutil
import sys
import zipfile
from mmap import mmap
from pathlib import Path

import pytest
import torch

from neuron_spec.checkpoints.pickle_ranges import value_offsets
from neuron_spec.checkpoints.pickles import load_pickle
from neuron_spec.checkpoints.tensors import CheckpointFiles

MATRIX = torch.arange(12.0).reshape(3, 4)
TENSORS = {
    "matrix": MATRIX,
    "transposed": MATRIX.T,
    "row": MATRIX[1],
    "half": torch.arange(5).to(torch.bfloat16),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "empty": torch.empty(0, 2),
    "scalar": torch.tensor(3.0),
    "conjugate": torch.tensor([1 + 2j]).conj(),
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def offsets(path: Path) -> dict[str, int]:
    return value_offsets(path, load_pickle(path))


def test_every_contiguous_tensor_is_found(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, path)
    found, content = offsets(path), path.read_bytes()
    assert found.keys() == TENSORS.keys() - {"transposed", "empty", "conjugate"}
    for name, offset in found.items():
        expected = raw(TENSORS[name])
        assert content[offset : offset + len(expected)] == expected, name


def test_the_old_format_has_no_ranges(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert offsets(tmp_path / "old.bin") == {}


def test_another_byte_order_has_no_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch turns the bytes around while it loads; the file's are not the values then."""
    torch.save({"a": MATRIX}, tmp_path / "f.bin")
    tensors = load_pickle(tmp_path / "f.bin")
    other = "big" if sys.byteorder == "little" else "little"
    monkeypatch.setattr(sys, "byteorder", other)
    assert value_offsets(tmp_path / "f.bin", tensors) == {}


@pytest.mark.parametrize("name", ["f/data/99", "f/data/extra"])
def test_values_that_no_tensor_has_make_the_order_doubtful(tmp_path: Path, name: str) -> None:
    torch.save({"a": MATRIX}, tmp_path / "f.bin")
    with zipfile.ZipFile(tmp_path / "f.bin", "a") as archive:
        archive.writestr(name, b"\0" * 48)
    tensors = {"a": torch.load(tmp_path / "f.bin", mmap=True)["a"]}
    assert value_offsets(tmp_path / "f.bin", tensors) == {}


def test_memory_that_is_no_mapping_has_no_ranges(tmp_path: Path) -> None:
    """Although every distance is the same as in the file."""
    tensors = {"a": torch.ones(1 << 16), "b": torch.zeros(1 << 16)}
    torch.save(tensors, tmp_path / "f.bin")
    content, found = bytearray((tmp_path / "f.bin").read_bytes()), offsets(tmp_path / "f.bin")
    for shift in (0, 1):
        memory = bytearray(shift) + content
        copies = {
            name: torch.frombuffer(memory, dtype=torch.uint8, offset=offset + shift, count=1 << 18)
            for name, offset in found.items()
        }
        assert value_offsets(tmp_path / "f.bin", copies) == {}


def test_storages_at_other_distances_have_no_ranges(tmp_path: Path) -> None:
    torch.save({"a": MATRIX, "b": MATRIX + 1}, tmp_path / "f.bin")
    page = mmap(-1, 1 << 16)
    tensors = {
        name: torch.frombuffer(page, dtype=torch.uint8, offset=offset, count=48)
        for name, offset in {"a": offsets(tmp_path / "f.bin")["a"], "b": 8192}.items()
    }
    assert value_offsets(tmp_path / "f.bin", tensors) == {}


def test_a_storage_of_another_size_has_no_range(tmp_path: Path) -> None:
    torch.save({"a": MATRIX}, tmp_path / "f.bin")
    page, offset = mmap(-1, 1 << 16), offsets(tmp_path / "f.bin")["a"]
    for count, is_found in ((48, True), (49, False)):
        tensor = torch.frombuffer(page, dtype=torch.uint8, offset=offset, count=count)
        assert bool(value_offsets(tmp_path / "f.bin", {"a": tensor})) == is_found


def test_reading_is_the_same_with_and_without_ranges(tmp_path: Path) -> None:
    real = {name: tensor for name, tensor in TENSORS.items() if name != "conjugate"}
    torch.save(real, tmp_path / "pytorch_model.bin")
    files = CheckpointFiles(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "copy")
    for name, tensor in real.items():
        assert torch.equal(files.read(name), tensor), name
        blocks = list(files.blocks(files.tensors[name], max_bytes=8))
        assert torch.equal(torch.cat(blocks), tensor.detach().reshape(-1)), name
