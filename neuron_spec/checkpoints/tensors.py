"""Reading a checkpoint's tensors lazily; `writer.py` is the other direction.

A tensor in a safetensors file is a byte range, read without the bytes around it; in a pickle it is
an entry (`pickles.py`). No byte is trusted, and `opening.py` says which files may be opened at all.
File precedence in a directory is NxDI's (`modules/checkpoint.py`), so that what is prepared here is
what NxDI would read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_spec.checkpoints.json_files import MAX_INDEX_BYTES, read_json
from neuron_spec.checkpoints.opening import is_plain_name
from neuron_spec.checkpoints.pickle_ranges import value_offsets
from neuron_spec.checkpoints.pickles import load_pickle
from neuron_spec.checkpoints.reading import COPY_BYTES, read_pieces
from neuron_spec.checkpoints.safetensors_header import ITEM_BYTES, StoredTensor, read_header
from neuron_spec.errors import CheckpointError, shown

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "COPY_BYTES",
    "FLOAT_DTYPES",
    "HEAD_FILES",
    "ITEM_BYTES",
    "TORCH_DTYPES",
    "WEIGHT_FILES",
    "CheckpointFiles",
    "StoredTensor",
    "load_pickle",
    "read_header",
    "read_json",
]

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
# Draft heads that live beside, or in place of, a whole model: NxDI's, the Medusa authors' two, and
# Hydra's.
HEAD_FILES = (
    "medusa_heads.pt",
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
    "hydra_lm_head.pt",
)
DRAFT_FILES = (*HEAD_FILES, *WEIGHT_FILES)


class CheckpointFiles:
    """The weight files of one checkpoint directory, opened lazily.

    Args:
        names: the files that may hold weights, the first that exists decides.

    Raises:
        CheckpointError: no weight file, a damaged one, or an index that does not fit its shards.
    """

    def __init__(self, directory: Path, names: Sequence[str] = WEIGHT_FILES) -> None:
        self.directory, self._names = directory, names
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
        for name in self._names:
            if (self.directory / name).is_file():
                return self.directory / name
        raise CheckpointError(
            "not a checkpoint: no weight file",
            where=self.directory,
            expected=f"one of {', '.join(self._names)}",
        )

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Every file that holds weights: one, or all shards of the index."""
        if not self.weight_file.name.endswith(".index.json"):
            return (self.weight_file,)
        index = read_json(self.weight_file, MAX_INDEX_BYTES)
        shards = index.get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise CheckpointError(
                "no 'weight_map' of file names in the index", where=self.weight_file
            )
        return tuple(self._shard(name) for name in sorted(set(shards.values())))

    def _shard(self, name: str) -> Path:
        if not is_plain_name(name):
            raise CheckpointError(
                "a shard is not a file beside the index",
                where=self.weight_file,
                found=shown(name),
                expected="a file name without folders",
                mend="download the index again, or distrust it",
            )
        path = self.directory / name
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
                        f"{shown(tensor.name)} is in two shards, {first} and {path.name}",
                        where=self.directory,
                    )
                found[tensor.name] = tensor
        return found

    def _entries(self, path: Path) -> Iterator[StoredTensor]:
        if path.suffix == ".safetensors":
            yield from read_header(path)
            return
        tensors = self._pickle(path)
        offsets = value_offsets(path, tensors)
        for name, tensor in tensors.items():
            dtype, shape = _dtype_name(tensor, path), tuple(tensor.shape)
            yield StoredTensor(name, dtype, shape, path, offsets.get(name))

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
        if stored.offset is None or not stored.num_bytes:
            flat = self.read(stored.name).reshape(-1)
            yield from flat.split(max(1, max_bytes // ITEM_BYTES[stored.dtype]))
            return
        for piece in read_pieces(stored, max_bytes):
            yield as_tensor(piece, stored.dtype)


def as_tensor(piece: bytearray, dtype: str) -> Tensor:
    """[items] stored bytes as values, without a copy."""
    import torch

    return torch.frombuffer(piece, dtype=getattr(torch, TORCH_DTYPES[dtype]))


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
