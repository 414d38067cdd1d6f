"""Reading byte ranges of checkpoint files, each once, and digesting them as they pass by."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from neuron_spec.checkpoints.block_file import BlockFile
from neuron_spec.checkpoints.opening import open_regular
from neuron_spec.checkpoints.safetensors_header import ITEM_BYTES, StoredTensor
from neuron_spec.files import Progress, no_progress

COPY_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20  # what is cast takes several times this: in, out, masks


@dataclass
class _WholeFile:
    """A file whose digest is wanted, and how far its bytes have passed by in their order."""

    digest: Any
    position: int = 0
    is_in_order: bool = True


class SourceReader:
    """The sources of one output file.

    Args:
        whole_files: files to digest as a whole. Where their tensors are read in the order of the
            file, as the writer does, that costs no second reading. Of other files each tensor that
            is read gets a digest of its own.
    """

    def __init__(self, whole_files: Collection[Path] = ()) -> None:
        self._whole = {path: _WholeFile(hashlib.sha256()) for path in whole_files}
        self._ranges: dict[StoredTensor, Any] = {}
        self._open: dict[Path, BinaryIO] = {}
        self._digester = ThreadPoolExecutor(1)  # one thread: bytes are digested in their order

    def __enter__(self) -> SourceReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._digester.shutdown(cancel_futures=True)
        for file in self._open.values():
            file.close()

    def copy(self, source: StoredTensor, out: BlockFile) -> Iterator[int]:
        """Append a stored tensor as it lies to `out`; yields byte counts, fewer if it ended early.

        The bytes are read into the block that is written, and digested there.
        """
        digest, file = self._begin(source)
        remaining = source.num_bytes
        while remaining:
            room = out.room[:remaining]
            count = _read_into(file, room)
            if count == 0:
                return
            out.advance(count, self._digest(digest, room[:count]))
            remaining -= count
            yield count

    def pieces(self, source: StoredTensor) -> Iterator[bytearray]:
        """The bytes of a stored tensor in whole items, each piece in memory of its own."""
        digest, file = self._begin(source)
        for piece in _pieces(file, source, _PIECE_BYTES):
            users = self._digest(digest, memoryview(piece))
            yield piece
            for user in users:  # no more than one piece is in memory
                user.result()

    def range_digests(self) -> dict[StoredTensor, str]:
        """Hex SHA-256 of every tensor that was read of a file that is not digested as a whole."""
        self._digester.submit(int).result()  # everything before it is done
        return {source: digest.hexdigest() for source, digest in self._ranges.items()}

    def file_digests(self, progress: Progress = no_progress) -> dict[Path, str]:
        """Hex SHA-256 of every whole file; reads what has not passed by."""
        self._digester.submit(int).result()
        return {path: self._complete(path, whole, progress) for path, whole in self._whole.items()}

    def _begin(self, source: StoredTensor) -> tuple[Any, BinaryIO]:
        """The file, at the tensor's first byte, and the digest for it; None if none is wanted."""
        file, offset = self._file(source.path), source.offset or 0
        digest = self._digest_of(source, offset)
        file.seek(offset)
        return digest, file

    def _digest_of(self, source: StoredTensor, offset: int) -> Any:
        whole = self._whole.get(source.path)
        if whole is None:
            if source in self._ranges:
                return None
            return self._ranges.setdefault(source, hashlib.sha256())
        whole.is_in_order = whole.is_in_order and offset >= whole.position
        if not whole.is_in_order:
            return None
        self._digest_up_to(source.path, whole, offset, no_progress)
        whole.position = offset + source.num_bytes
        return whole.digest

    def _complete(self, path: Path, whole: _WholeFile, progress: Progress) -> str:
        if not whole.is_in_order:
            whole = _WholeFile(hashlib.sha256())
        self._digest_up_to(path, whole, path.stat().st_size, progress)
        return str(whole.digest.hexdigest())

    def _digest_up_to(self, path: Path, whole: _WholeFile, end: int, progress: Progress) -> None:
        """Digest what lies between what passed by last and `end`: a header, tensors left out."""
        file, start = self._file(path), whole.position
        file.seek(start)
        while whole.position < end and (data := file.read(min(end - whole.position, COPY_BYTES))):
            self._digester.submit(whole.digest.update, data).result()
            whole.position += len(data)
            progress(f"digest {path.name}", whole.position - start, end - start)

    def _digest(self, digest: Any, data: memoryview) -> list[Future[Any]]:
        return [] if digest is None else [self._digester.submit(digest.update, data)]

    def _file(self, path: Path) -> BinaryIO:
        if path not in self._open:
            self._open[path] = open_regular(path)
        return self._open[path]


def read_pieces(source: StoredTensor, max_bytes: int = COPY_BYTES) -> Iterator[bytearray]:
    """The bytes of a stored tensor in pieces of whole items, each in memory of its own.

    Read and not mapped: the pages of a mapping count as the process's memory while it lasts.
    """
    with open_regular(source.path) as file:
        file.seek(source.offset or 0)
        yield from _pieces(file, source, max_bytes)


def _pieces(file: BinaryIO, source: StoredTensor, max_bytes: int) -> Iterator[bytearray]:
    item_bytes = ITEM_BYTES[source.dtype]
    remaining = source.num_bytes
    while remaining:
        piece = bytearray(min(remaining, max(1, max_bytes // item_bytes) * item_bytes))
        count = _read_into(file, memoryview(piece))
        if count < len(piece):
            return
        remaining -= count
        yield piece


def _read_into(file: BinaryIO, room: memoryview) -> int:
    """Fill `room`; returns fewer bytes only where the file ends."""
    count = 0
    while count < len(room) and (read := file.readinto(room[count:])):  # type: ignore[attr-defined]
        count += read
    return count
