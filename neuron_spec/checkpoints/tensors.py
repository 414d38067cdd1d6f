"""Reading a checkpoint's tensors lazily; `writer.py` is the other direction.

A tensor in a safetensors file is a byte range, read without the bytes around it. A pickle is
loaded with `weights_only=True` and nothing else. File precedence in a directory is NxDI's
(`modules/checkpoint.py`), so that what is prepared here is what NxDI would read.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from neuron_spec.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
TORCH_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}  # fmt: skip
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_MAX_HEADER_BYTES = 100_000_000
_MAX_ITEMS = 1 << 48
COPY_BYTES = 8 << 20


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
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise CheckpointError(
                "no 'weight_map' of file names in the index", where=self.weight_file
            )
        return tuple(self._shard(name) for name in sorted(set(shards.values())))

    def _shard(self, name: str) -> Path:
        path = self.directory / name
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
            yield StoredTensor(name, _dtype_name(tensor, path), tuple(tensor.shape), path, None)

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

    def blocks(self, stored: StoredTensor, max_bytes: int = COPY_BYTES) -> Iterator[Tensor]:
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
    except (ValueError, RecursionError) as error:
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
    except (ValueError, RecursionError):
        raise CheckpointError("damaged safetensors header: not JSON", where=path) from None
    if not isinstance(header, dict):
        raise CheckpointError("damaged safetensors header: not an object", where=path)
    return 8 + length, header


def _entry(path: Path, start: int, name: str, fields: Any) -> StoredTensor:
    try:
        dtype, shape = fields["dtype"], tuple(fields["shape"])
        begin, end = fields["data_offsets"]
        is_valid = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        is_valid = is_valid and isinstance(dtype, str) and _num_items(shape) < _MAX_ITEMS
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


def _num_items(shape: Sequence[int]) -> int:
    """Values of a tensor; a dimension of 0 counts as 1, so that it cannot hide absurd others."""
    return math.prod(max(size, 1) for size in shape)


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
    if not isinstance(data, dict) or not all(_is_plain(value) for value in data.values()):
        raise CheckpointError("not a flat mapping of names to dense tensors", where=path)
    return {str(name): tensor.detach() for name, tensor in data.items()}


def _is_plain(value: object) -> bool:
    """A dense tensor with values; a pickle may hold sparse, quantized and empty-shell ones too."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


def _dtype_name(tensor: Tensor, path: Path) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    for short, torch_name in TORCH_DTYPES.items():
        if torch_name == name:
            return short
    raise CheckpointError(f"unsupported dtype {name}", where=path)


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
