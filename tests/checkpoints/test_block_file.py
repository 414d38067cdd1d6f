"""A file written in blocks: the same bytes on every file system, and their digest."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from neuron_spec.checkpoints import block_file
from neuron_spec.checkpoints.block_file import BlockFile

BLOCK = 8192
SIZES = [0, 1, 4095, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 7 * BLOCK + 5]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_file, "BLOCK_BYTES", BLOCK)


def write(path: Path, data: bytes, piece_bytes: int = 1000) -> str:
    with BlockFile(path) as file:
        for begin in range(0, len(data), piece_bytes):
            file.write(memoryview(data)[begin : begin + piece_bytes])
        return file.finish()


def assert_written(path: Path, data: bytes) -> None:
    digest = write(path, data)
    assert path.read_bytes() == data
    assert digest == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece_bytes", [1, 1000, BLOCK, 10 * BLOCK])
def test_pieces_of_any_size_follow_each_other(tmp_path: Path, size: int, piece_bytes: int) -> None:
    data = random.Random(size).randbytes(size)
    digest = write(tmp_path / "f", data, piece_bytes)
    assert (tmp_path / "f").read_bytes() == data
    assert digest == hashlib.sha256(data).hexdigest()


def test_an_earlier_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 5 * BLOCK)
    assert_written(tmp_path / "f", b"short")


def refuse_at_opening(number: int) -> Callable[..., Any]:
    real = os.open

    def opening(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *arguments, **options)

    return opening


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct writing here")
@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_direct_writing_refused_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "open", refuse_at_opening(number))
    assert_written(tmp_path / "f", random.Random(1).randbytes(3 * BLOCK + 5))


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct writing here")
def test_other_refusals_at_opening_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", refuse_at_opening(errno.EACCES))
    with pytest.raises(PermissionError):
        write(tmp_path / "f", b"x")


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct writing here")
@pytest.mark.parametrize("fails_after", [0, 1])
def test_direct_writing_refused_at_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_after: int
) -> None:
    import fcntl

    real, num_calls = os.write, 0

    def refuse(descriptor: int, data: Any) -> int:
        nonlocal num_calls
        num_calls += 1
        if num_calls > fails_after and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", refuse)
    assert_written(tmp_path / "f", random.Random(1).randbytes(3 * BLOCK + 5))
    assert num_calls > 3


def test_a_platform_without_direct_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    assert_written(tmp_path / "f", random.Random(1).randbytes(3 * BLOCK + 5))


@pytest.mark.parametrize("most", [700, 4096])
def test_short_writes_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:most]))
    assert_written(tmp_path / "f", random.Random(1).randbytes(3 * BLOCK + 5))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINVAL])
@pytest.mark.parametrize("size", [1, 9 * BLOCK])
def test_a_disk_that_fills_up_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, size: int
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    num_threads = threading.active_count()
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        write(tmp_path / "f", b"x" * size)
    assert caught.value.errno == number
    assert threading.active_count() == num_threads


def test_a_block_is_not_filled_anew_while_somebody_reads_it(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def read_slowly(data: memoryview) -> None:
        time.sleep(0.05)
        seen.append(bytes(data[:1]))

    with ThreadPoolExecutor(1) as slow, BlockFile(tmp_path / "f") as file:
        for number in range(20):
            room = file.room
            room[:] = bytes([number]) * len(room)
            file.advance(len(room), [slow.submit(read_slowly, room)])
        file.finish()
    assert seen == [bytes([number]) for number in range(20)]


@pytest.mark.parametrize("count", [1, BLOCK])
def test_what_a_reader_of_a_block_raises_is_raised(tmp_path: Path, count: int) -> None:
    with ThreadPoolExecutor(1) as pool, BlockFile(tmp_path / "f") as file:
        file.advance(count, [pool.submit(int, "x")])
        with pytest.raises(ValueError, match="invalid literal"):
            file.finish()
