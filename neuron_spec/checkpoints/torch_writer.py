"""Writing a PyTorch file in a stream; `writer.py` does the same for safetensors.

Values that several names refer to are stored once, as `torch.save` does. PyTorch itself writes the
file's description around empty places; the values are then filled in block by block, so memory
does not grow with them.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from neuron_spec.checkpoints.reading import SourceReader
from neuron_spec.checkpoints.tensors import ITEM_BYTES, TORCH_DTYPES
from neuron_spec.checkpoints.writer import (
    ComputedTensor,
    Output,
    check_room,
    values_of,
)
from neuron_spec.errors import CheckpointError
from neuron_spec.files import Progress, no_progress

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = 64  # PyTorch's own: values may be mapped where they lie
_LOCAL_HEADER_BYTES = 30
_ZIP64_EXTRA_BYTES = 20


def write_torch(
    path: Path,
    tensors: Sequence[Output],
    progress: Progress = no_progress,
    *,
    reader: SourceReader | None = None,
) -> None:
    """Write a flat name -> tensor mapping for `torch.load(weights_only=True)`, mapped or not.

    Args:
        reader: reads the stored tensors, and has digests of them afterwards.

    Raises:
        StorageError: the disk has no room (checked before the first byte).
        CheckpointError: a cast would overflow, or a source ends early.
    """
    stored = list({_content(tensor): tensor for tensor in tensors}.values())
    total = sum(_num_bytes(tensor) for tensor in stored)
    check_room(path, total)
    done = 0
    skeleton = path.with_name(f".{path.name}.skeleton")
    try:
        _write_skeleton(skeleton, tensors)
        with (
            nullcontext(reader) if reader else SourceReader() as sources,
            zipfile.ZipFile(skeleton) as old,
            zipfile.ZipFile(path, "w") as new,
        ):
            for entry in old.infolist():
                folder, _, number = entry.filename.rpartition("/")
                if not folder.endswith("/data"):
                    new.writestr(_entry(entry.filename), old.read(entry))
                    continue
                for written in _write_values(new, entry.filename, stored[int(number)], sources):
                    done += written
                    progress(f"write {path.name}", done, total)
    finally:
        skeleton.unlink(missing_ok=True)


def _write_skeleton(path: Path, tensors: Sequence[Output]) -> None:
    """The file with holes for its values: nothing of their size is in memory or on the disk."""
    import torch
    from torch.serialization import skip_data

    empty: dict[object, Tensor] = {}
    for tensor in tensors:
        dtype = getattr(torch, TORCH_DTYPES[tensor.dtype])
        empty.setdefault(_content(tensor), torch.empty(tensor.shape, dtype=dtype))
    with skip_data():
        torch.save({tensor.name: empty[_content(tensor)] for tensor in tensors}, path)


def _write_values(
    archive: zipfile.ZipFile, name: str, tensor: Output, reader: SourceReader
) -> Iterator[int]:
    expected, found = _num_bytes(tensor), 0
    entry = _entry(name)
    start = archive.fp.tell() if archive.fp else 0
    entry.extra = _padding(start + _LOCAL_HEADER_BYTES + _ZIP64_EXTRA_BYTES + len(name.encode()))
    with archive.open(entry, "w", force_zip64=True) as file:
        for piece in values_of(tensor, reader):
            written = _write(file, piece)
            found += written
            yield written
    if found != expected:
        raise CheckpointError(f"source ended early: {tensor.origin}", where=archive.filename)


def _write(file: IO[bytes], values: Tensor) -> int:
    import torch

    raw = values.contiguous().reshape(-1).view(torch.uint8).numpy()
    return file.write(raw.data)


def _entry(name: str) -> zipfile.ZipInfo:
    """Uncompressed, and the same bytes whenever it is written."""
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _padding(position: int) -> bytes:
    """An extra field that moves what follows it to a multiple of the alignment."""
    size = -(position + 4) % _ALIGNMENT
    return struct.pack("<2sH", b"FB", size) + b"Z" * size


def _content(tensor: Output) -> object:
    """Equal for outputs that hold the same values."""
    if isinstance(tensor, ComputedTensor):
        return (id(tensor.values), tensor.shape)
    return (tensor.source, tensor.dtype)


def _num_bytes(tensor: Output) -> int:
    return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
