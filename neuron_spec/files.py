"""Writing so that a reader sees the old state or the new one, never half of it; digests."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuron_spec.errors import UserError, storage_errors

Progress = Callable[[str, int, int], None]
"""Called as `progress(label, done, total)` while long work runs; units are bytes unless said."""

_DIGEST_CHUNK_BYTES = 8 << 20


def no_progress(label: str, done: int, total: int) -> None:
    """The default progress callback: silence."""


@dataclass(frozen=True)
class FileRecord:
    """One file as it was when it was used: name, size, time of change and SHA-256.

    Without a digest (large files of which only a part was read) the time of change decides.
    """

    name: str
    num_bytes: int
    mtime_ns: int
    sha256: str | None

    @classmethod
    def of(cls, path: Path, progress: Progress = no_progress) -> FileRecord:
        """Record `path` with its digest."""
        status = path.stat()
        return cls(path.name, status.st_size, status.st_mtime_ns, sha256(path, progress))

    @classmethod
    def without_digest(cls, path: Path) -> FileRecord:
        """Record `path` without reading it."""
        status = path.stat()
        return cls(path.name, status.st_size, status.st_mtime_ns, None)

    def difference(self, path: Path, *, always_digest: bool = False) -> str | None:
        """What differs between this record and `path` now, or None.

        The digest is computed only when the time of change differs (or when asked), so that
        opening large weights stays fast.
        """
        if not path.is_file():
            return "missing"
        status = path.stat()
        if status.st_size != self.num_bytes:
            return f"{status.st_size} bytes, recorded {self.num_bytes}"
        is_same_time = status.st_mtime_ns == self.mtime_ns
        if self.sha256 is None:
            return None if is_same_time else "written again since"
        if (is_same_time and not always_digest) or sha256(path) == self.sha256:
            return None
        return "content differs from the recorded SHA-256"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def sha256(path: Path, progress: Progress = no_progress) -> str:
    """Hex SHA-256 of a file, read in chunks."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_DIGEST_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(f"digest {path.name}", done, total)
    return digest.hexdigest()


def fsync_path(path: Path) -> None:
    """Flush a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file beside, fsync, rename over `path`."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        fsync_path(path.parent)


@contextmanager
def new_directory(destination: Path, mark: str) -> Iterator[Path]:
    """Yield an empty folder beside `destination` that takes its place when the block succeeds.

    On any failure (an exception, Ctrl-C, a full disk) the folder is removed and whatever stood at
    `destination` is untouched. Leftovers of processes that were killed are cleared first.

    Args:
        mark: the file that every folder of this kind holds; only such a folder is replaced.
    """
    destination = destination.resolve()  # a link stays, what it names is replaced
    with storage_errors(destination):
        _refuse_foreign(destination, mark)
        destination.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(destination)
        partial = destination.parent / f".{destination.name}.partial-{os.getpid()}"
        partial.mkdir()
        try:
            yield partial
            for file in sorted(partial.rglob("*")):
                fsync_path(file)
            fsync_path(partial)
            _swap(partial, destination)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _refuse_foreign(destination: Path, mark: str) -> None:
    """What we did not write, or wrote for another purpose, is never replaced."""
    if not destination.exists():
        return
    empty = destination.is_dir() and not any(destination.iterdir())
    if not empty and not (destination / mark).is_file():
        raise UserError(
            f"exists and holds no {mark} of neuron-spec; it is left as it is",
            where=destination,
            mend="choose another --output, or remove it yourself",
        )


def _swap(partial: Path, destination: Path) -> None:
    """Put `partial` at `destination`; an earlier folder there is kept until the rename is done."""
    previous = destination.parent / f".{destination.name}.previous-{os.getpid()}"
    try:
        if destination.exists():
            destination.rename(previous)
        partial.rename(destination)
    except BaseException:
        if previous.exists() and not destination.exists():
            previous.rename(destination)
        raise
    fsync_path(destination.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _clear_leftovers(destination: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(destination.name)}\.(partial|previous)-(\d+)")
    for entry in destination.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match is None or _is_running(int(match[2])):
            continue
        if match[1] == "previous" and not destination.exists():
            entry.rename(destination)  # killed between the two renames of _swap
        else:
            shutil.rmtree(entry, ignore_errors=True)


def _is_running(process_id: int) -> bool:
    if process_id == os.getpid():
        return False
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
