"""Writing safetensors in a stream: a few blocks of memory, whatever the model's size.

A tensor that keeps its dtype travels as a byte range without torch; only a cast goes through torch.
Each byte is read once and written once, and all digests are taken of the block that it is in then.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_spec.checkpoints.block_file import BlockFile
from neuron_spec.checkpoints.reading import SourceReader
from neuron_spec.checkpoints.tensors import (
    ITEM_BYTES,
    TORCH_DTYPES,
    CheckpointFiles,
    StoredTensor,
    as_tensor,
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

    def record(self, digests: Mapping[StoredTensor, str]) -> dict[str, Any]:
        """Where it came from, for `prepared.json`; without a digest the file has one."""
        return {
            "from": str(self.source.path),
            "name": self.source.name,
            "stored_dtype": self.source.dtype,
            "dtype": self.dtype,
            "sha256": digests.get(self.source),
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

    def record(self, digests: Mapping[StoredTensor, str]) -> dict[str, Any]:
        """Where it came from, for `prepared.json`."""
        sources = [{"from": str(source.path), "name": source.name} for source in self.sources]
        return {"computed": self.how, "sources": sources, "dtype": self.dtype}


Output = OutputTensor | ComputedTensor


def write_safetensors(
    path: Path,
    tensors: Sequence[Output],
    progress: Progress = no_progress,
    *,
    reader: SourceReader | None = None,
) -> str:
    """Write a safetensors file in a stream; memory stays at a few blocks.

    Args:
        reader: reads the stored tensors, and has digests of them afterwards.

    Returns:
        Hex SHA-256 of the file.

    Raises:
        StorageError: the disk has no room (checked before the first byte).
        CheckpointError: a cast would overflow the narrower type, or a source ends early.
    """
    ordered = _in_order(tensors)
    sizes = [math.prod(t.shape) * ITEM_BYTES[t.dtype] for t in ordered]
    header = _header_bytes(ordered, sizes)
    check_room(path, len(header) + sum(sizes))
    done, end, total = 0, 0, sum(sizes)
    with nullcontext(reader) if reader else SourceReader() as sources, BlockFile(path) as file:
        file.write(memoryview(header))
        for tensor, num_bytes in zip(ordered, sizes, strict=True):
            for written in _write_values(file, tensor, sources):
                done += written
                progress(f"write {path.name}", done, total)
            end += num_bytes
            if done != end:
                raise CheckpointError(f"source ended early: {tensor.origin}", where=path)
        return file.finish()


def _in_order(tensors: Sequence[Output]) -> list[Output]:
    """Wide items first, which keeps every tensor aligned; else as they lie in their files, so that
    a file is read from its beginning to its end. Where the files are does not matter."""
    paths = [tensor.source.path for tensor in tensors if isinstance(tensor, OutputTensor)]
    ranks = {path: rank for rank, path in enumerate(dict.fromkeys(paths))}

    def key(tensor: Output) -> tuple[int, int, int, str]:
        width = -ITEM_BYTES[tensor.dtype]
        if isinstance(tensor, ComputedTensor):
            return (width, -1, 0, tensor.name)
        return (width, ranks[tensor.source.path], tensor.source.offset or 0, tensor.name)

    return sorted(tensors, key=key)


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


def check_room(path: Path, num_bytes: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    free = shutil.disk_usage(path.parent).free
    if num_bytes > free:
        raise StorageError(
            "not enough disk space",
            where=path,
            found=f"{free:,} bytes free",
            expected=f"{num_bytes:,} bytes",
            mend="free disk space, or write elsewhere with --output",
        )


def values_of(tensor: Output, reader: SourceReader) -> Iterator[Tensor]:
    """The values to write as flat pieces, in order, in the output dtype.

    Raises:
        CheckpointError: a cast would overflow the narrower type.
    """
    if isinstance(tensor, ComputedTensor):
        yield from tensor.values()
    elif tensor.source.offset is None:
        yield from (_cast(block, tensor) for block in tensor.files.blocks(tensor.source))
    else:
        for piece in reader.pieces(tensor.source):
            yield _cast(as_tensor(piece, tensor.source.dtype), tensor)


def _write_values(file: BlockFile, tensor: Output, reader: SourceReader) -> Iterator[int]:
    if isinstance(tensor, OutputTensor) and _is_range(tensor):
        yield from reader.copy(tensor.source, file)
        return
    for values in values_of(tensor, reader):
        yield _write(file, values)


def _is_range(tensor: OutputTensor) -> bool:
    """Whether its bytes can be copied as they lie."""
    return tensor.source.offset is not None and tensor.dtype == tensor.source.dtype


def _write(file: BlockFile, values: Tensor) -> int:
    import torch

    raw = values.contiguous().reshape(-1).view(torch.uint8).numpy()
    file.write(raw.data)
    return raw.nbytes


def _has_less_range(cast: Tensor, block: Tensor) -> bool:
    """Whether a finite value of `block` may have no finite value in `cast`'s dtype."""
    import torch

    if not (cast.is_floating_point() and block.is_floating_point()):
        return False
    return torch.finfo(cast.dtype).max < torch.finfo(block.dtype).max


def _cast(block: Tensor, tensor: OutputTensor) -> Tensor:
    """`block` in the output dtype; refuses values that overflow."""
    import torch

    cast = block.to(getattr(torch, TORCH_DTYPES[tensor.dtype]))
    if _has_less_range(cast, block) and bool((block.isfinite() & ~cast.isfinite()).any()):
        raise CheckpointError(
            f"'{tensor.source.name}' does not fit {tensor.dtype}: a cast from "
            f"{tensor.source.dtype} overflows",
            where=tensor.source.path,
            mend="store the draft in bfloat16 or float32",
        )
    return cast
