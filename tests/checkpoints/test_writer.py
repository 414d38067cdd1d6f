"""Writing safetensors: byte for byte what was stored, cast only when asked, refused when full."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from neuron_spec.checkpoints import writer
from neuron_spec.checkpoints.tensors import CheckpointFiles
from neuron_spec.checkpoints.writer import OutputTensor, write_safetensors
from neuron_spec.errors import CheckpointError, StorageError

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


@pytest.mark.parametrize(
    "number",
    [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, None],
)
@pytest.mark.parametrize("fails_after", [0, 1])
def test_without_copying_in_the_kernel_the_bytes_are_the_same(
    tmp_path: Path,
    files: CheckpointFiles,
    monkeypatch: pytest.MonkeyPatch,
    number: int | None,
    fails_after: int,
) -> None:
    """`None`: a file system that copies nothing and says so with 0."""
    write_safetensors(tmp_path / "normal", outputs_of(files))
    real, num_calls = os.copy_file_range, 0

    def copy(*arguments: Any) -> int:
        nonlocal num_calls
        num_calls += 1
        if num_calls <= fails_after:
            return real(*arguments)
        if number is None:
            return 0
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", copy)
    monkeypatch.setattr(writer, "COPY_BYTES", 1000)
    write_safetensors(tmp_path / "fallback", outputs_of(files))
    assert num_calls > fails_after
    assert (tmp_path / "fallback").read_bytes() == (tmp_path / "normal").read_bytes()
    assert_copied(tmp_path / "fallback")


def test_a_platform_without_the_call(
    tmp_path: Path, files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    write_safetensors(tmp_path / "out", outputs_of(files))
    assert_copied(tmp_path / "out")


def test_short_copies_are_continued(
    tmp_path: Path, files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.copy_file_range
    monkeypatch.setattr(
        os, "copy_file_range", lambda src, dst, count, at: real(src, dst, min(count, 700), at)
    )
    write_safetensors(tmp_path / "out", outputs_of(files))
    assert_copied(tmp_path / "out")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills_up_while_copying_is_told(
    tmp_path: Path, files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", fail)
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
