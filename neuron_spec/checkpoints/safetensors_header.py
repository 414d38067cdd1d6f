"""The header of a safetensors file: where each tensor lies, believed only after it was checked."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from neuron_spec.checkpoints.json_files import parse_object
from neuron_spec.checkpoints.opening import open_regular
from neuron_spec.errors import CheckpointError, shown

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip

_MAX_HEADER_BYTES = 32 << 20  # some 300,000 tensors; parsed, a hostile one takes 20 times as much
_MAX_ITEMS = 1 << 48
_MAX_DIMENSIONS = 16
_MAX_NAME_CHARS = 512


@dataclass(frozen=True)
class StoredTensor:
    """A tensor where it lies: a byte range of a file, or an entry of a pickle."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int | None
    """First byte in `path`; None for an entry of a pickle that is not one plain range of it."""

    @property
    def num_bytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def read_header(path: Path) -> list[StoredTensor]:
    """The entries of a safetensors file, every length and offset checked before use.

    Raises:
        CheckpointError: truncated, overlapping, unknown dtypes, or not safetensors at all.
    """
    try:
        with open_regular(path) as file:
            num_file_bytes = os.fstat(file.fileno()).st_size
            start, header = _header(file, path, num_file_bytes)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=path) from None
    header.pop("__metadata__", None)
    entries = [_entry(path, start, name, fields) for name, fields in header.items()]
    _check_layout(path, start, num_file_bytes, entries)
    return entries


def check_name(name: object, path: Path) -> None:
    """A tensor's name is text that can be printed, compared and written again.

    Raises:
        CheckpointError: another type, too long, control characters or halves of characters.
    """
    if not isinstance(name, str) or not name.isprintable() or len(name) > _MAX_NAME_CHARS:
        raise CheckpointError(
            "a tensor's name is not a name",
            where=path,
            found=shown(name),
            expected=f"at most {_MAX_NAME_CHARS} printable characters",
        )


def _header(file: BinaryIO, path: Path, num_file_bytes: int) -> tuple[int, dict[str, Any]]:
    """Offset of the data and the parsed header."""
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
    if not 2 <= length <= min(_MAX_HEADER_BYTES, num_file_bytes - 8):
        raise CheckpointError(
            "not a safetensors file, or cut short in its header",
            where=path,
            found=f"{num_file_bytes} bytes",
            mend="download or copy it again",
        )
    return 8 + length, parse_object(file.read(length), path, "safetensors header")


def _entry(path: Path, start: int, name: str, fields: Any) -> StoredTensor:
    check_name(name, path)
    try:
        dtype, shape = fields["dtype"], tuple(fields["shape"])
        begin, end = fields["data_offsets"]
        is_valid = isinstance(dtype, str) and len(shape) <= _MAX_DIMENSIONS
        is_valid = is_valid and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        is_valid = is_valid and _num_items(shape) < _MAX_ITEMS
    except (TypeError, KeyError, ValueError):
        is_valid = False
    if not is_valid:
        raise CheckpointError(f"damaged safetensors header: entry {shown(name)}", where=path)
    if dtype not in ITEM_BYTES:
        raise CheckpointError(
            f"tensor {shown(name)} has the unknown dtype {shown(dtype)}", where=path
        )
    tensor = StoredTensor(name, dtype, shape, path, start + begin)
    if end - begin != tensor.num_bytes:
        raise CheckpointError(
            f"tensor {shown(name)}: {end - begin} bytes do not hold {dtype} {list(shape)}",
            where=path,
        )
    return tensor


def _num_items(shape: Sequence[int]) -> int:
    """Values of a tensor; a dimension of 0 counts as 1, so that it cannot hide absurd others."""
    return math.prod(max(size, 1) for size in shape)


def _check_layout(path: Path, start: int, total: int, entries: Sequence[StoredTensor]) -> None:
    """Tensors follow each other without gap or overlap and fill the file exactly."""
    position = start
    for tensor in sorted(entries, key=lambda entry: (entry.offset or 0, entry.num_bytes)):
        if tensor.offset != position:
            raise CheckpointError(
                f"tensor {shown(tensor.name)} overlaps or leaves a gap", where=path
            )
        position += tensor.num_bytes
    if position != total:
        problem = (
            "truncated safetensors file" if position > total else "bytes after the last tensor"
        )
        raise CheckpointError(
            problem,
            where=path,
            found=f"{total} bytes",
            expected=f"{position} bytes by its header",
            mend="download or copy it again",
        )
