"""Writing so that a reader sees the old state or the new one, never half of it; digests."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuron_spec.errors import UserError, storage_errors

Progress = Callable[[str, int, int], None]
"""Called as `progress(label, done, total)` while long work runs; units are bytes unless said."""

_CHUNK_BYTES = 8 << 20
# Another file system, one without hard links, too many links, or links forbidden.
_NO_HARD_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
# What network file systems answer to a lock on a folder.
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


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
        try:
            status = path.stat()
        except FileNotFoundError:  # another process is just replacing it
            return "missing"
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
        while chunk := file.read(_CHUNK_BYTES):
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


def link_or_copy(source: Path, destination: Path, progress: Progress = no_progress) -> None:
    """A hard link to `source`, or a copy where the file system has none (or it is another one)."""
    source = source.resolve()  # a link of a hub cache: link what it names
    try:
        os.link(source, destination)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        done, total = 0, source.stat().st_size
        with source.open("rb") as reader, destination.open("wb") as writer:
            while chunk := reader.read(_CHUNK_BYTES):
                writer.write(chunk)
                done += len(chunk)
                progress(f"copy {source.name}", done, total)


@contextmanager
def new_directory(destination: Path, mark: str) -> Iterator[Path]:
    """Yield an empty folder beside `destination` that takes its place when the block succeeds.

    On any failure (an exception, Ctrl-C, a full disk) the folder is removed and whatever stood at
    `destination` is untouched. After a kill the next run removes what was left. Of several
    processes or threads at once each writes a folder of its own; the last to end stays.

    Args:
        mark: the file that every folder of this kind holds; only such a folder is replaced.
    """
    destination = destination.resolve()  # a link stays, what it names is replaced
    with storage_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial, hold = _claim(destination, mark)
        try:
            yield partial
            for file in sorted(partial.rglob("*")):
                fsync_path(file)
            fsync_path(partial)
            with _locked(destination.parent):
                _swap(partial, destination)
        finally:  # by now the earlier folder if the swap was done, else half of the new one
            shutil.rmtree(partial, ignore_errors=True)
            os.close(hold)


def clear_leftovers(destination: Path) -> None:
    """Remove what killed processes left beside `destination`; see `new_directory`.

    For who may find that nothing has to be written: a kill can come right after the swap.
    """
    destination = destination.resolve()
    # Where nothing may be removed, there is no harm in what is left.
    with suppress(OSError), _locked(destination.parent):
        _clear_leftovers(destination)


def _claim(destination: Path, mark: str) -> tuple[Path, int]:
    """A new folder beside `destination`, and the open lock that says it is in use.

    The lock ends with the process, however it ends; a process id could be another's by then, or
    another container's.
    """
    with _locked(destination.parent):
        _refuse_foreign(destination, mark)
        _clear_leftovers(destination)
        suffix = f"{os.getpid()}-{secrets.token_hex(4)}"
        partial = destination.parent / f".{destination.name}.partial-{suffix}"
        partial.mkdir()
        hold = os.open(partial, os.O_RDONLY)
        _lock(hold, fcntl.LOCK_EX)
        return partial, hold


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
    """Put `partial` at `destination`; an earlier folder there ends at `partial`, or is removed."""
    if not destination.exists():
        partial.rename(destination)
    elif not _exchange(partial, destination):
        _swap_in_two_steps(partial, destination)
    fsync_path(destination.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step, so that a reader always finds one of both folders.

    Returns:
        False where the system or the file system cannot (Linux can, on most of them).
    """
    at_current_folder, rename_exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    paths = os.fsencode(first), os.fsencode(second)
    status: int = renameat2(
        at_current_folder, paths[0], at_current_folder, paths[1], rename_exchange
    )
    return status == 0


def _swap_in_two_steps(partial: Path, destination: Path) -> None:
    """For a moment there is nothing at `destination`; after a kill just then, the next run puts the
    earlier folder back."""
    suffix = partial.name.rpartition(".partial-")[2]
    previous = destination.parent / f".{destination.name}.previous-{suffix}"
    try:
        destination.rename(previous)
        partial.rename(destination)
    except BaseException:
        if previous.exists() and not destination.exists():
            previous.rename(destination)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def _clear_leftovers(destination: Path) -> None:
    """Remove what killed processes left beside `destination`."""
    name = re.escape(destination.name)
    pattern = re.compile(rf"\.{name}\.(partial|previous)-(\d+)(?:-[0-9a-f]+)?")
    for entry in sorted(destination.parent.iterdir()):
        match = pattern.fullmatch(entry.name)
        if match is None or not _is_abandoned(entry, int(match[2])):
            continue
        if match[1] == "previous" and not destination.exists():
            entry.rename(destination)  # killed between the two steps of a swap
        else:
            shutil.rmtree(entry, ignore_errors=True)


def _is_abandoned(folder: Path, process_id: int) -> bool:
    """Whether nobody holds the lock of a folder; without locks, whether the process is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone by now, or not ours
        return False
    try:
        return _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) or not _is_running(process_id)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Claims and swaps in one folder happen one after the other; what takes long does not wait."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int) -> bool:
    """Lock until the descriptor is closed; False where the file system has no such locks."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
