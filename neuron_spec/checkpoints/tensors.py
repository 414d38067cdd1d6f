"""Reading a checkpoint's tensors lazily and writing safetensors in a stream.

A tensor in a safetensors file is a byte range; it travels to the output as one, without torch.
A pickle is loaded with `weights_only=True` and nothing else. File precedence in a directory is
NxDI's (`modules/checkpoint.py`), so that what is prepared here is what NxDI would read.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from neuron_spec.errors import CheckpointError, StorageError
from neuron_spec.files import Progress, no_progress

if TYPE_CHECKING:
    from torch import Tensor

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
TORCH_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_MAX_HEADER_BYTES = 100_000_000
_COPY_BYTES = 8 << 20


@dataclass(frozen=True)
class StoredTensor:
    """A tensor where it lies: a byte range of a safetensors file, or an entry of a pickle."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int | None
    """First byte in `path`; None for an entry of a pickle."""

    @property
    def num_bytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class CheckpointFiles:
    """The weight files of one checkpoint directory, opened lazily.

    Raises:
        CheckpointError: no weight file, a damaged one, or an index that does not fit its shards.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if not directory.is_dir():
            raise CheckpointError(
                "no such directory" if not directory.exists() else "is not a directory",
                where=directory,
                expected="a checkpoint directory with config.json and weights",
            )
        self._pickles: dict[Path, Mapping[str, Tensor]] = {}

    @cached_property
    def weight_file(self) -> Path:
        """The file that decides: the first of NxDI's precedence that exists."""
        for name in WEIGHT_FILES:
            if (self.directory / name).is_file():
                return self.directory / name
        raise CheckpointError(
            "not a checkpoint: no weight file",
            where=self.directory,
            expected=f"one of {', '.join(WEIGHT_FILES)}",
        )

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Every file that holds weights: one, or all shards of the index."""
        if not self.weight_file.name.endswith(".index.json"):
            return (self.weight_file,)
        index = read_json(self.weight_file)
        shards = index.get("weight_map")
        if not isinstance(shards, dict):
            raise CheckpointError("no 'weight_map' in the index", where=self.weight_file)
        return tuple(self._shard(name) for name in sorted(set(shards.values())))

    def _shard(self, name: object) -> Path:
        path = self.directory / str(name)
        if path.parent != self.directory:
            raise CheckpointError(f"shard '{name}' lies outside", where=self.weight_file)
        if not path.is_file():
            raise CheckpointError(
                "shard named by the index is missing", where=path, mend="download it again"
            )
        return path

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """All tensors by name."""
        found: dict[str, StoredTensor] = {}
        for path in self.files:
            for tensor in self._entries(path):
                if tensor.name in found:
                    first = found[tensor.name].path.name
                    raise CheckpointError(
                        f"'{tensor.name}' is in two shards, {first} and {path.name}",
                        where=self.directory,
                    )
                found[tensor.name] = tensor
        return found

    def _entries(self, path: Path) -> Iterator[StoredTensor]:
        if path.suffix == ".safetensors":
            yield from read_header(path)
            return
        for name, tensor in self._pickle(path).items():
            yield StoredTensor(name, _dtype_name(tensor), tuple(tensor.shape), path, None)

    def _pickle(self, path: Path) -> Mapping[str, Tensor]:
        if path not in self._pickles:
            self._pickles[path] = load_pickle(path)
        return self._pickles[path]

    def read(self, name: str) -> Tensor:
        """One tensor, in its stored dtype and shape.

        Raises:
            CheckpointError: no tensor of that name.
        """
        stored = self.tensors.get(name)
        if stored is None:
            raise CheckpointError(f"no tensor '{name}'", where=self.directory)
        if stored.offset is None:
            return self._pickle(stored.path)[name]
        return _map_tensor(stored)

    def blocks(self, stored: StoredTensor, max_bytes: int = _COPY_BYTES) -> Iterator[Tensor]:
        """The values of a tensor as flat pieces of at most `max_bytes`."""
        flat = self.read(stored.name).reshape(-1)
        yield from flat.split(max(1, max_bytes // ITEM_BYTES[stored.dtype]))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint directory, or a `CheckpointError`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"not a checkpoint: no {path.name}", where=path.parent) from None
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=path) from None
    except ValueError as error:
        raise CheckpointError(f"not valid JSON: {error}", where=path) from None
    if not isinstance(data, dict):
        raise CheckpointError("not a JSON object", where=path)
    return data


def read_header(path: Path) -> list[StoredTensor]:
    """The entries of a safetensors file, every length and offset checked before use.

    Raises:
        CheckpointError: truncated, overlapping, unknown dtypes, or not safetensors at all.
    """
    try:
        num_file_bytes = path.stat().st_size
        with path.open("rb") as file:
            start, header = _header(file, path, num_file_bytes)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=path) from None
    header.pop("__metadata__", None)
    entries = [_entry(path, start, name, fields) for name, fields in header.items()]
    _check_layout(path, start, num_file_bytes, entries)
    return entries


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
    try:
        header = json.loads(file.read(length))
    except ValueError:
        raise CheckpointError("damaged safetensors header: not JSON", where=path) from None
    if not isinstance(header, dict):
        raise CheckpointError("damaged safetensors header: not an object", where=path)
    return 8 + length, header


def _entry(path: Path, start: int, name: str, fields: Any) -> StoredTensor:
    try:
        dtype, shape = fields["dtype"], tuple(fields["shape"])
        begin, end = fields["data_offsets"]
        is_valid = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        is_valid = False
    if not is_valid:
        raise CheckpointError(f"damaged safetensors header: entry '{name}'", where=path)
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"tensor '{name}' has the unknown dtype {dtype!r}", where=path)
    tensor = StoredTensor(name, dtype, shape, path, start + begin)
    if end - begin != tensor.num_bytes:
        raise CheckpointError(
            f"tensor '{name}': {end - begin} bytes do not hold {dtype} {list(shape)}", where=path
        )
    return tensor


def _check_layout(path: Path, start: int, total: int, entries: Sequence[StoredTensor]) -> None:
    """Tensors follow each other without gap or overlap and fill the file exactly."""
    position = start
    for tensor in sorted(entries, key=lambda entry: (entry.offset or 0, entry.num_bytes)):
        if tensor.offset != position:
            raise CheckpointError(f"tensor '{tensor.name}' overlaps or leaves a gap", where=path)
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


def load_pickle(path: Path) -> Mapping[str, Tensor]:
    """A flat name -> tensor mapping from a PyTorch pickle; no code in it is ever run.

    Raises:
        CheckpointError: needs more than `weights_only=True`, is damaged, or is not flat.
    """
    import torch

    try:
        try:
            data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # written before the zip format: cannot be mapped
            data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"cannot be loaded safely ({type(error).__name__})",
            where=path,
            expected="a PyTorch file of tensors that loads with weights_only=True",
            mend="convert it to safetensors where you trust it, or download it again",
        ) from error
    is_flat = isinstance(data, dict) and all(isinstance(t, torch.Tensor) for t in data.values())
    if not is_flat:
        raise CheckpointError("not a flat mapping of names to tensors", where=path)
    return {str(name): tensor for name, tensor in data.items()}


def _dtype_name(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    for short, torch_name in TORCH_DTYPES.items():
        if torch_name == name:
            return short
    raise CheckpointError(f"unsupported dtype {name}")


def _map_tensor(stored: StoredTensor) -> Tensor:
    import torch

    dtype = getattr(torch, TORCH_DTYPES[stored.dtype])
    num_items = math.prod(stored.shape)
    if num_items == 0:
        return torch.empty(stored.shape, dtype=dtype)
    num_file_bytes = stored.path.stat().st_size
    raw = torch.from_file(
        str(stored.path), shared=False, size=num_file_bytes, dtype=torch.uint8
    )  # private mapping: pages are read on first touch, the file is never written
    part = raw[stored.offset : (stored.offset or 0) + stored.num_bytes]
    if (stored.offset or 0) % ITEM_BYTES[stored.dtype]:
        part = part.clone()
    return part.view(dtype).reshape(stored.shape)


@dataclass(frozen=True)
class OutputTensor:
    """One tensor to write: where it comes from and the dtype it gets."""

    name: str
    source: StoredTensor
    files: CheckpointFiles
    dtype: str


def write_safetensors(
    path: Path, tensors: Sequence[OutputTensor], progress: Progress = no_progress
) -> None:
    """Write a safetensors file in a stream; memory stays at one copy buffer.

    Raises:
        StorageError: the disk has no room (checked before the first byte).
        CheckpointError: a cast would overflow the narrower type.
    """
    ordered = sorted(tensors, key=lambda t: (-ITEM_BYTES[t.dtype], t.name))  # keeps alignment
    sizes = [math.prod(t.source.shape) * ITEM_BYTES[t.dtype] for t in ordered]
    header = _header_bytes(ordered, sizes)
    _check_room(path, len(header) + sum(sizes))
    done, total = 0, sum(sizes)
    with path.open("wb") as file:
        file.write(header)
        file.flush()
        for tensor, num_bytes in zip(ordered, sizes, strict=True):
            for written in _write_values(file, tensor):
                done += written
                progress(f"write {path.name}", done, total)
            _check_written(file, path, len(header), done, num_bytes)


def _header_bytes(tensors: Sequence[OutputTensor], sizes: Sequence[int]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor, num_bytes in zip(tensors, sizes, strict=True):
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.source.shape),
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


def _check_written(file: BinaryIO, path: Path, start: int, done: int, num_bytes: int) -> None:
    if file.tell() != start + done:
        raise CheckpointError(f"a source file ended early ({num_bytes} bytes wanted)", where=path)


def _write_values(file: BinaryIO, tensor: OutputTensor) -> Iterator[int]:
    if tensor.dtype == tensor.source.dtype and tensor.source.offset is not None:
        yield from _copy_range(tensor.source, file)
        return
    for block in tensor.files.blocks(tensor.source):
        raw = _cast(block, tensor).numpy().tobytes()
        file.write(raw)
        yield len(raw)


def _cast(block: Tensor, tensor: OutputTensor) -> Tensor:
    """`block` in the output dtype, as raw bytes; refuses values that overflow."""
    import torch

    cast = block.to(getattr(torch, TORCH_DTYPES[tensor.dtype])).contiguous()
    if block.is_floating_point() and bool((block.isfinite() & ~cast.isfinite()).any()):
        raise CheckpointError(
            f"'{tensor.source.name}' does not fit {tensor.dtype}: a cast from "
            f"{tensor.source.dtype} overflows",
            where=tensor.source.path,
            mend="store the draft in bfloat16 or float32",
        )
    return cast.view(torch.uint8)


def _copy_range(source: StoredTensor, file: BinaryIO) -> Iterator[int]:
    """Copy a byte range, inside the kernel where the file systems can."""
    with source.path.open("rb") as reader:
        offset, remaining = source.offset or 0, source.num_bytes
        file.flush()
        while remaining:
            copied = _copy_some(reader, file, offset, min(remaining, _COPY_BYTES))
            if copied == 0:
                return
            offset, remaining = offset + copied, remaining - copied
            yield copied


def _copy_some(reader: BinaryIO, writer: BinaryIO, offset: int, count: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            copied = os.copy_file_range(reader.fileno(), writer.fileno(), count, offset)
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
    import errno

    return error.errno in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
