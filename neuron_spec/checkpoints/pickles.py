"""PyTorch pickles: loaded with `weights_only=True` and nothing else, after a look at the file.

What torch does not check is checked first. A zip entry may be compressed, so that a small file
unpacks to more than the memory; and a pickle may ask for a `bytearray` of any size.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from neuron_spec.checkpoints.opening import open_regular
from neuron_spec.checkpoints.safetensors_header import check_name
from neuron_spec.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_MAX_PROGRAM_BYTES = 64 << 20  # the pickle itself, without the values
_ZIP_START = b"PK\x03\x04"
_VALUES = re.compile(r"[^/]+/data/\d+")
_SIZED_CONSTRUCTOR = re.compile(rb"c(?:builtins|__builtin__)\nbytearray\n")


def load_pickle(path: Path) -> Mapping[str, Tensor]:
    """A flat name -> tensor mapping from a PyTorch pickle; no code in it is ever run.

    Raises:
        CheckpointError: needs more than `weights_only=True`, is damaged, or is not flat.
    """
    import torch

    try:
        _check_container(path)
        try:
            data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # written before the zip format: cannot be mapped
            data = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"cannot be loaded safely ({type(error).__name__})",
            where=path,
            expected="a PyTorch file of tensors that loads with weights_only=True",
            mend="convert it to safetensors where you trust it, or download it again",
        ) from error
    if not isinstance(data, dict) or not all(_is_plain(value) for value in data.values()):
        raise CheckpointError("not a flat mapping of names to dense tensors", where=path)
    for name in data:
        check_name(name, path)
    return {name: tensor.detach() for name, tensor in data.items()}


def _check_container(path: Path) -> None:
    with open_regular(path) as file:
        fault = _zip_fault(file) if is_zip(file) else _old_format_fault(file)
    if fault is not None:
        raise CheckpointError(
            f"cannot be loaded safely: {fault}",
            where=path,
            expected="a file as torch.save writes it",
            mend="download it again, or distrust it",
        )


def is_zip(file: BinaryIO) -> bool:
    """Whether torch takes the file for a zip: it looks at the start, others at the end."""
    file.seek(0)
    return file.read(len(_ZIP_START)) == _ZIP_START


def _zip_fault(file: BinaryIO) -> str | None:
    num_file_bytes = file.seek(0, 2)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            return "a compressed entry, which torch.save never writes"
        if sum(entry.file_size for entry in entries) > num_file_bytes:
            return "its entries overlap"
        programs = [entry for entry in entries if not _VALUES.fullmatch(entry.filename)]
        if any(entry.file_size > _MAX_PROGRAM_BYTES for entry in programs):
            return f"a pickle of more than {_MAX_PROGRAM_BYTES:,} bytes"
        if any(_SIZED_CONSTRUCTOR.search(archive.read(entry)) for entry in programs):
            return "it makes a bytearray, which no checkpoint needs"
    return None


def _old_format_fault(file: BinaryIO) -> str | None:
    if file.seek(0, 2) == 0:
        return "it is empty"
    with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        if _SIZED_CONSTRUCTOR.search(content):
            return "it makes a bytearray, which no checkpoint needs"
    return None


def _is_plain(value: object) -> bool:
    """A dense tensor that has all its values; a pickle may hold sparse, quantized, lazily negated,
    empty-shell ones too, and ones that repeat a value to any size."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
        and not value.is_neg()
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )
