"""Writing a large file in aligned blocks: each byte is digested once, beside the writing.

The blocks go past the page cache where the file system allows it (`O_DIRECT`). What is written once
and not read soon gains nothing from the cache, pushes out what others need, and costs the processor
more than the copying itself; the flush at the end would then wait for all of it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from mmap import mmap
from pathlib import Path
from types import TracebackType
from typing import Any

BLOCK_BYTES = 4 << 20
_NUM_BLOCKS = 8  # some are filled while some are digested and some written, whoever is slow
_ALIGNMENT = 4096  # of position, length and memory; a multiple of what any device asks for


class BlockFile:
    """A new file, filled from its beginning to its end; `with` closes it, whole or not.

    Raises:
        OSError: the file system refused; the file is then incomplete.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor, self._is_direct = _open(path)
        self._blocks = [mmap(-1, BLOCK_BYTES) for _ in range(_NUM_BLOCKS)]  # aligned to pages
        self._users: list[list[Future[Any]]] = [[] for _ in range(_NUM_BLOCKS)]
        self._current = self._num_filled = 0
        self._digest = hashlib.sha256()
        # One thread each, so that pieces are digested and written in their order.
        self._digester, self._writer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def __enter__(self) -> BlockFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for thread in (self._digester, self._writer):
            thread.shutdown(cancel_futures=True)
        os.close(self._descriptor)

    @property
    def room(self) -> memoryview:
        """What is free of the current block, never empty: fill its beginning, then `advance`."""
        return memoryview(self._blocks[self._current])[self._num_filled :]

    def advance(self, count: int, users: Iterable[Future[Any]] = ()) -> None:
        """Count `count` bytes of `room` as filled.

        Args:
            users: what else reads these bytes; the block is not filled anew before they are done.
        """
        self._num_filled += count
        self._users[self._current] += users
        if self._num_filled == BLOCK_BYTES:
            self._send()
            self._current = (self._current + 1) % _NUM_BLOCKS
            self._num_filled = 0
            self._wait(self._current)

    def write(self, data: memoryview) -> None:
        """Append bytes that lie elsewhere."""
        while data:
            room = self.room
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.advance(count)
            data = data[count:]

    def finish(self) -> str:
        """Write what is left; returns the hex SHA-256 of all that was written."""
        self._send()
        for block in range(_NUM_BLOCKS):
            self._wait(block)
        return self._digest.hexdigest()

    def _send(self) -> None:
        filled = memoryview(self._blocks[self._current])[: self._num_filled]
        self._users[self._current] += [
            self._digester.submit(self._digest.update, filled),
            self._writer.submit(self._write, filled),
        ]

    def _wait(self, block: int) -> None:
        """Until nobody reads the block any more; what went wrong there is raised here."""
        users, self._users[block] = self._users[block], []
        for user in users:
            user.result()

    def _write(self, data: memoryview) -> None:
        if len(data) % _ALIGNMENT:
            self._use_page_cache()  # the end of the file
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._use_page_cache()  # allowed at opening, refused at writing

    def _use_page_cache(self) -> None:
        if self._is_direct:
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self._is_direct = False


def _open(path: Path) -> tuple[int, bool]:
    """A descriptor, and whether it goes past the page cache."""
    flags, direct = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, getattr(os, "O_DIRECT", 0)
    if direct:
        try:
            return os.open(path, flags | direct, 0o666), True
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
    return os.open(path, flags, 0o666), False
