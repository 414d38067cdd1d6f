"""Writing safetensors in a stream: one copy buffer of memory, whatever the model's size.

A tensor that keeps its dtype travels as a byte range, inside the kernel where the file systems
can, without torch; only a cast, or a pickle, goes through torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from neuron_spec.checkpoints.tensors import (
    COPY_BYTES,
    ITEM_BYTES,
    TORCH_DTYPES,
    CheckpointFiles,
    StoredTensor,
)
from neuron_spec.errors import CheckpointError, StorageError
from neuron_spec.files import Progress, no_progress

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OutputTensor:
    """One tensor to write as it is stored: where it comes from and the dtype it gets."""

    name: str
    source: StoredTensor
    files: CheckpointFiles
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        return self.source.shape

    @property
    def origin(self) -> str:
        """For error messages."""
        return f"'{self.source.name}' of {self.source.path}"

    def record(self) -> dict[str, Any]:
        """Where it came from, for `prepared.json`."""
        return {
            "from": str(self.source.path),
            "name": self.source.name,
            "stored_dtype": self.source.dtype,
            "dtype": self.dtype,
            "sha256": range_sha256(self.source),
        }


@dataclass(frozen=True)
class ComputedTensor:
    """One tensor to write that no file holds in this form.

    Attributes:
        values: makes its values as flat pieces, in order, in the output dtype.
        how: what was computed, in a sentence.
        sources: the stored tensors it was computed from.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: Callable[[], Iterator[Tensor]]
    how: str
    sources: tuple[StoredTensor, ...] = ()

    @property
    def origin(self) -> str:
        """For error messages."""
        return f"'{self.name}' ({self.how})"

    def record(self) -> dict[str, Any]:
        """Where it came from, for `prepared.json`."""
        sources = [{"from": str(source.path), "name": source.name} for source in self.sources]
        return {"computed": self.how, "sources": sources, "dtype": self.dtype}


Output = OutputTensor | ComputedTensor


def range_sha256(source: StoredTensor) -> str | None:
    """Hex SHA-256 of a tensor's bytes in its file; None in a pickle, whose file has a digest."""
    if source.offset is None:
        return None
    digest, remaining = hashlib.sha256(), source.num_bytes
    with source.path.open("rb") as file:
        file.seek(source.offset)
        while remaining and (data := file.read(min(remaining, COPY_BYTES))):
            digest.update(data)
            remaining -= len(data)
    return digest.hexdigest()


def write_safetensors(
    path: Path, tensors: Sequence[Output], progress: Progress = no_progress
) -> None:
    """Write a safetensors file in a stream; memory stays at one copy buffer.

    Raises:
        StorageError: the disk has no room (checked before the first byte).
        CheckpointError: a cast would overflow the narrower type.
    """
    ordered = sorted(tensors, key=lambda t: (-ITEM_BYTES[t.dtype], t.name))  # keeps alignment
    sizes = [math.prod(t.shape) * ITEM_BYTES[t.dtype] for t in ordered]
    header = _header_bytes(ordered, sizes)
    _check_room(path, len(header) + sum(sizes))
    done, end, total = 0, 0, sum(sizes)
    with path.open("wb") as file:
        file.write(header)
        file.flush()
        for tensor, num_bytes in zip(ordered, sizes, strict=True):
            for written in _write_values(file, tensor):
                done += written
                progress(f"write {path.name}", done, total)
            end += num_bytes
            if done != end:
                raise CheckpointError(f"source ended early: {tensor.origin}", where=path)


def _header_bytes(tensors: Sequence[Output], sizes: Sequence[int]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor, num_bytes in zip(tensors, sizes, strict=True):
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, begin + num_bytes],
        }
        begin += num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _check_room(path: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if num_bytes > free:
        raise StorageError(
            "not enough disk space",
            where=path,
            found=f"{free:,} bytes free",
            expected=f"{num_bytes:,} bytes",
            mend="free disk space, or write elsewhere with --output",
        )


def _write_values(file: BinaryIO, tensor: Output) -> Iterator[int]:
    if isinstance(tensor, ComputedTensor):
        for piece in tensor.values():
            yield _write(file, piece)
        return
    if tensor.dtype == tensor.source.dtype and tensor.source.offset is not None:
        yield from _copy_range(tensor.source, file)
        return
    for block in tensor.files.blocks(tensor.source):
        yield _write(file, _cast(block, tensor))


def _write(file: BinaryIO, values: Tensor) -> int:
    import torch

    raw = values.contiguous().view(torch.uint8).numpy().tobytes()
    file.write(raw)
    return len(raw)


def _cast(block: Tensor, tensor: OutputTensor) -> Tensor:
    """`block` in the output dtype; refuses values that overflow."""
    import torch

    cast = block.to(getattr(torch, TORCH_DTYPES[tensor.dtype]))
    narrowed = block.is_floating_point() and tensor.dtype != tensor.source.dtype
    if narrowed and bool((block.isfinite() & ~cast.isfinite()).any()):
        raise CheckpointError(
            f"'{tensor.source.name}' does not fit {tensor.dtype}: a cast from "
            f"{tensor.source.dtype} overflows",
            where=tensor.source.path,
            mend="store the draft in bfloat16 or float32",
        )
    return cast


def _copy_range(source: StoredTensor, file: BinaryIO) -> Iterator[int]:
    """Copy a byte range, inside the kernel where the file systems can."""
    with source.path.open("rb") as reader:
        offset, remaining = source.offset or 0, source.num_bytes
        file.flush()
        while remaining:
            copied = _copy_some(reader, file, offset, min(remaining, COPY_BYTES))
            if copied == 0:
                return
            offset, remaining = offset + copied, remaining - copied
            yield copied


def _copy_some(reader: BinaryIO, writer: BinaryIO, offset: int, count: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            copied = os.copy_file_range(reader.fileno(), writer.fileno(), count, offset)
            if copied:  # some file systems answer 0 where they should refuse
                writer.seek(0, os.SEEK_END)
                return copied
        except OSError as error:
            if not _cannot_copy_in_kernel(error):
                raise
    reader.seek(offset)
    data = reader.read(count)
    writer.write(data)
    writer.flush()
    return len(data)


def _cannot_copy_in_kernel(error: OSError) -> bool:
    return error.errno in (
        errno.EXDEV,
        errno.EINVAL,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.EBADF,
        errno.EPERM,  # what some containers answer to a call they do not know
    )
