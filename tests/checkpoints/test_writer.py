"""Writing safetensors: byte for byte what was stored, cast only when asked, refused when full."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from neuron_spec.checkpoints import block_file, reading
from neuron_spec.checkpoints.block_file import BlockFile
from neuron_spec.checkpoints.reading import SourceReader
from neuron_spec.checkpoints.tensors import CheckpointFiles, read_header
from neuron_spec.checkpoints.writer import ComputedTensor, OutputTensor, write_safetensors
from neuron_spec.errors import CheckpointError, StorageError
from neuron_spec.files import sha256

SOURCE = {
    "big": torch.arange(3000.0).reshape(30, 100),
    "half": torch.arange(5).to(torch.bfloat16),
    "byte": torch.arange(3, dtype=torch.uint8),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7.0),
    "double": torch.tensor([1e-300, 2.0], dtype=torch.float64),
}


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFiles:
    (tmp_path / "source").mkdir()
    save_file(SOURCE, tmp_path / "source" / "model.safetensors")
    return CheckpointFiles(tmp_path / "source")


def outputs_of(files: CheckpointFiles, **dtypes: str) -> list[OutputTensor]:
    return [
        OutputTensor(f"new.{name}", stored, files, dtypes.get(name, stored.dtype))
        for name, stored in files.tensors.items()
    ]


def assert_copied(path: Path) -> None:
    written = load_file(path)
    assert written.keys() == {f"new.{name}" for name in SOURCE}
    for name, tensor in SOURCE.items():
        assert written[f"new.{name}"].dtype == tensor.dtype, name
        assert torch.equal(written[f"new.{name}"], tensor), name


def test_their_library_reads_what_we_write(tmp_path: Path, files: CheckpointFiles) -> None:
    calls: list[tuple[str, int, int]] = []
    write_safetensors(
        tmp_path / "out.safetensors", outputs_of(files), lambda *call: calls.append(call)
    )
    assert_copied(tmp_path / "out.safetensors")
    total = sum(tensor.numel() * tensor.element_size() for tensor in SOURCE.values())
    assert calls[-1] == ("write out.safetensors", total, total)
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)


def test_every_tensor_begins_aligned(tmp_path: Path, files: CheckpointFiles) -> None:
    (tmp_path / "out").mkdir()
    write_safetensors(tmp_path / "out" / "model.safetensors", outputs_of(files))
    for stored in CheckpointFiles(tmp_path / "out").tensors.values():
        assert stored.offset is not None
        item = torch.empty(0, dtype=SOURCE[stored.name.removeprefix("new.")].dtype).element_size()
        assert stored.offset % item == 0


class ShortReads(io.BufferedReader):
    """A file that gives a few bytes at a time, as some file systems do."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[:700])


def test_short_reads_are_continued(
    tmp_path: Path, files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = outputs_of(files, double="F32")
    monkeypatch.setattr(reading, "open_regular", lambda path: ShortReads(io.FileIO(path)))
    write_safetensors(tmp_path / "out", outputs)
    monkeypatch.undo()
    assert load_file(tmp_path / "out")["new.double"].dtype == torch.float32
    write_safetensors(tmp_path / "same", outputs_of(files))
    assert_copied(tmp_path / "same")


@pytest.mark.parametrize("block_bytes", [4096, 8192])
def test_blocks_that_end_within_tensors(
    tmp_path: Path, files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    write_safetensors(tmp_path / "one block", outputs_of(files))
    monkeypatch.setattr(block_file, "BLOCK_BYTES", block_bytes)
    digest = write_safetensors(tmp_path / "out", outputs_of(files))
    assert_copied(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "one block").read_bytes()
    assert digest == sha256(tmp_path / "out")


# Order and digests


def names_in_order(path: Path) -> list[str]:
    return [entry.name for entry in sorted(read_header(path), key=lambda entry: entry.offset or 0)]


@pytest.mark.parametrize("folders", [("a", "b"), ("b", "a")])
def test_tensors_lie_as_in_their_files_wherever_these_are(
    tmp_path: Path, folders: tuple[str, str]
) -> None:
    """Wide items first; then file by file as the plan names them, so that each is read once."""
    outputs = []
    for folder, names in zip(folders, ("zy", "xw"), strict=True):
        (tmp_path / folder).mkdir()
        write_raw(tmp_path / folder / "model.safetensors", [*names, f"{names}64"])
        files = CheckpointFiles(tmp_path / folder)
        outputs += [OutputTensor(n, t, files, t.dtype) for n, t in files.tensors.items()]
    zeros = ComputedTensor("zzz", (1,), "F32", lambda: iter([torch.zeros(1)]), "zeros")
    write_safetensors(tmp_path / "out.safetensors", [*outputs, zeros])
    order = names_in_order(tmp_path / "out.safetensors")
    assert order == ["zy64", "xw64", "zzz", "z", "y", "x", "w"]


def write_raw(path: Path, names: list[str]) -> None:
    """One value each in the order of `names`; a name that ends with 64 is an F64."""
    header, data = {}, b""
    for name in names:
        dtype, value = (
            ("F64", b"12345678") if name.endswith("64") else ("F32", name[0].encode() * 4)
        )
        offsets = [len(data), len(data) + len(value)]
        header[name] = {"dtype": dtype, "shape": [1], "data_offsets": offsets}
        data += value
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class CountedReads(io.BufferedReader):
    """Notes how much of which file is read."""

    counts: ClassVar[dict[Path, int]] = {}

    def read(self, size: int | None = -1) -> bytes:
        return self._count(super().read(size))

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        self.counts[self.name] = self.counts.get(self.name, 0) + count
        return count

    def _count(self, data: bytes) -> bytes:
        self.counts[self.name] = self.counts.get(self.name, 0) + len(data)
        return data


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    CountedReads.counts.clear()
    monkeypatch.setattr(reading, "open_regular", lambda path: CountedReads(io.FileIO(path)))
    return CountedReads.counts


WHOLE_FILE_CASES: dict[str, tuple[dict[str, str], tuple[str, ...], int]] = {
    "all in order": ({}, (), 1),
    "some left out": ({}, ("big", "byte", "scalar"), 1),
    "all left out": ({}, tuple(SOURCE), 1),
    "cast, still in order": ({"big": "F64", "double": "F64"}, (), 2),
    "narrowed, still in order": ({"scalar": "BF16"}, ("half",), 1),
    "out of order": ({"half": "F64"}, (), 3),
}


@pytest.mark.parametrize("case", WHOLE_FILE_CASES)
@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_a_whole_file_is_digested_while_it_is_copied(
    tmp_path: Path,
    files: CheckpointFiles,
    monkeypatch: pytest.MonkeyPatch,
    counts: dict[Path, int],
    case: str,
    block_bytes: int,
) -> None:
    """Its header and what is left out of the output too; it is read again only out of order."""
    monkeypatch.setattr(block_file, "BLOCK_BYTES", block_bytes)
    dtypes, left_out, max_readings = WHOLE_FILE_CASES[case]
    path = files.weight_file
    outputs = [o for o in outputs_of(files, **dtypes) if o.source.name not in left_out]
    calls: list[tuple[str, int, int]] = []
    with SourceReader([path]) as reader:
        output = write_safetensors(tmp_path / "out", outputs, reader=reader)
        digests = reader.file_digests(lambda *call: calls.append(call))
        assert reader.range_digests() == {}
    assert digests == {path: sha256(path)}
    assert output == sha256(tmp_path / "out")
    size = path.stat().st_size
    assert size <= counts[path] <= max_readings * size
    assert (counts[path] == size) == (max_readings == 1 or "still" in case)
    assert all(label == "digest model.safetensors" for label, _, _ in calls)
    assert all(done == total for _, done, total in calls[-1:])


@pytest.mark.parametrize("dtype", ["F32", "F64", "BF16"])
def test_tensors_of_other_files_have_a_digest_each(
    tmp_path: Path, files: CheckpointFiles, counts: dict[Path, int], dtype: str
) -> None:
    """Of the bytes as they are stored, cast or not; what two outputs share is digested once."""
    stored = files.tensors["big"]
    outputs = [OutputTensor(name, stored, files, dtype) for name in ("one", "two")]
    with SourceReader() as reader:
        write_safetensors(tmp_path / "out", outputs, reader=reader)
        assert reader.file_digests() == {}
        digests = reader.range_digests()
    assert digests == {stored: hashlib.sha256(SOURCE["big"].numpy().tobytes()).hexdigest()}
    assert counts == {files.weight_file: 2 * stored.num_bytes}


def test_digests_wait_for_the_bytes_that_are_on_their_way(
    tmp_path: Path, files: CheckpointFiles
) -> None:
    whole, stored = files.weight_file, files.tensors["big"]
    for whole_files in ([whole], []):
        with SourceReader(whole_files) as reader, BlockFile(tmp_path / "out") as file:
            reader._digester.submit(time.sleep, 0.1)
            assert sum(reader.copy(stored, file)) == stored.num_bytes
            expected = hashlib.sha256(SOURCE["big"].numpy().tobytes()).hexdigest()
            assert reader.range_digests() == ({} if whole_files else {stored: expected})
            assert reader.file_digests() == {path: sha256(path) for path in whole_files}


def test_a_pickle_is_copied_and_digested_like_any_file(
    tmp_path: Path, counts: dict[Path, int]
) -> None:
    (tmp_path / "p").mkdir()
    tensors = {"a": torch.arange(3000.0), "b": torch.ones(2)}
    torch.save(tensors, tmp_path / "p" / "pytorch_model.bin")
    files = CheckpointFiles(tmp_path / "p")
    with SourceReader(files.files) as reader:
        write_safetensors(tmp_path / "out", outputs_of(files), reader=reader)
        assert reader.file_digests() == {files.weight_file: sha256(files.weight_file)}
    assert counts == {files.weight_file: files.weight_file.stat().st_size}
    assert torch.equal(load_file(tmp_path / "out")["new.a"], tensors["a"])


# What goes wrong


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills_up_while_copying_is_told(
    tmp_path: Path, files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        write_safetensors(tmp_path / "out", outputs_of(files))
    assert caught.value.errno == number


def test_too_little_room_is_refused_before_a_byte_is_written(
    tmp_path: Path, files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_safetensors(tmp_path / "first", outputs_of(files))
    needed = (tmp_path / "first").stat().st_size
    free = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(StorageError, match="not enough disk space") as caught:
        write_safetensors(tmp_path / "second", outputs_of(files))
    assert f"{needed:,} bytes" in str(caught.value) and caught.value.exit_code == 2
    assert not (tmp_path / "second").exists()
    free.free = needed
    write_safetensors(tmp_path / "second", outputs_of(files))


def test_a_source_that_shrinks_is_refused(tmp_path: Path, files: CheckpointFiles) -> None:
    outputs = outputs_of(files)
    os.truncate(files.weight_file, files.weight_file.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="ended early") as caught:
        write_safetensors(tmp_path / "out", outputs)
    assert str(files.weight_file) in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"),
    [("BF16", torch.bfloat16), ("F16", torch.float16), ("F64", torch.float64)],
)
def test_a_cast_is_torchs(
    tmp_path: Path, files: CheckpointFiles, dtype: str, torch_dtype: torch.dtype
) -> None:
    write_safetensors(tmp_path / "out", outputs_of(files, big=dtype))
    assert torch.equal(load_file(tmp_path / "out")["new.big"], SOURCE["big"].to(torch_dtype))


def cast(tmp_path: Path, values: torch.Tensor, dtype: str) -> torch.Tensor:
    (tmp_path / "cast").mkdir()
    save_file({"a": values}, tmp_path / "cast" / "model.safetensors")
    files = CheckpointFiles(tmp_path / "cast")
    write_safetensors(tmp_path / "out", [OutputTensor("a", files.tensors["a"], files, dtype)])
    return load_file(tmp_path / "out")["a"]


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_cast_that_overflows_is_refused(tmp_path: Path, stored: torch.dtype) -> None:
    values = torch.tensor([1.0, -70000.0]).to(stored)
    with pytest.raises(CheckpointError, match="'a' does not fit F16.*overflows") as caught:
        cast(tmp_path, values, "F16")
    assert str(tmp_path / "cast" / "model.safetensors") in str(caught.value)


def test_the_largest_float16_and_stored_infinities_pass(tmp_path: Path) -> None:
    values = torch.tensor([65504.0, float("inf"), -float("inf"), float("nan")])
    assert torch.equal(
        cast(tmp_path, values, "F16").nan_to_num(nan=1.0), values.half().nan_to_num(nan=1.0)
    )


def test_pickled_tensors_are_written_as_they_are(tmp_path: Path) -> None:
    tensors = {
        "view": torch.arange(6.0).reshape(2, 3).T,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "eight": torch.ones(3).to(torch.float8_e5m2),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 2),
    }
    (tmp_path / "p").mkdir()
    torch.save(tensors, tmp_path / "p" / "pytorch_model.bin")
    write_safetensors(tmp_path / "out", outputs_of(CheckpointFiles(tmp_path / "p")))
    for name, written in load_file(tmp_path / "out").items():
        tensor = tensors[name.removeprefix("new.")].detach()
        assert written.dtype == tensor.dtype and written.shape == tensor.shape
        assert torch.equal(written.float(), tensor.float())
