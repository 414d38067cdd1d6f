"""Where the values of a pickled tensor lie in the file.

`torch.save` stores them uncompressed, one entry of the zip for each storage, so that a pickled
tensor is a byte range like any other and can be read without mapping the whole file. Which entry
belongs to which storage is not said outside the pickle program; a mapped file shows it, because the
storages lie in memory as the entries lie in the file.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections.abc import Mapping
from mmap import PAGESIZE
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from neuron_spec.checkpoints.opening import open_regular
from neuron_spec.checkpoints.pickles import is_zip

if TYPE_CHECKING:
    from torch import Tensor

_LOCAL_HEADER_BYTES = 30
_LENGTHS_AT = 26  # of the name and of the extra field, which the values follow


def value_offsets(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """First byte in `path` of every tensor whose values are one plain range of it.

    Empty where the file and the memory do not agree in every place and size: a file of the time
    before the zip format, of another byte order, or not written by `torch.save`.

    Args:
        tensors: what `torch.load(mmap=True)` found in the file.
    """
    storages = {}
    for tensor in tensors.values():
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage.nbytes()
    addresses = sorted(storages)
    try:
        with open_regular(path) as file:
            entries = _entries(file)
    except (OSError, ValueError, struct.error, zipfile.BadZipFile):
        return {}  # a table that leads nowhere; what torch could load is read through torch
    sizes = [storages[address] for address in addresses]
    if not addresses or [size for _, size in entries] != sizes:
        return {}
    starts = {address: offset for address, (offset, _) in zip(addresses, entries, strict=True)}
    begins = {address - offset for address, offset in starts.items()}  # of the file in memory
    if len(begins) > 1 or begins.pop() % PAGESIZE:
        return {}
    return {
        name: starts[tensor.untyped_storage().data_ptr()]
        + int(tensor.storage_offset()) * tensor.element_size()
        for name, tensor in tensors.items()
        if tensor.numel() and tensor.is_contiguous() and not tensor.is_conj()
    }


def _entries(file: BinaryIO) -> list[tuple[int, int]]:
    """(first byte, size) of every entry that holds values, by position; empty if none can be used.

    Entries are uncompressed: `load_pickle` has checked it.
    """
    if not is_zip(file):
        return []
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        orders = [archive.read(info) for info in infos if info.filename.endswith("/byteorder")]
    if any(order != sys.byteorder.encode() for order in orders):
        return []
    values = [info for info in infos if info.file_size and "/data/" in info.filename]
    return sorted((_values_at(file, info.header_offset), info.file_size) for info in values)


def _values_at(file: BinaryIO, header_offset: int) -> int:
    file.seek(header_offset + _LENGTHS_AT)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    return int(header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes)
