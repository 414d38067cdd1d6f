"""Memory for weights, which every pass reads from end to end: in large pages where Linux has them.

Pages of 4 KiB have to be found one by one, and processors do not read ahead beyond one's end.
Without torch at import: memory can be made ready while PyTorch is still loading.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PAGE = 2 << 20  # bytes; of x86-64, and of Arm with pages of 4 KiB
_REGION = 64 << 20  # pages that nothing is written to are not taken
_ALIGNMENT = 64  # a line of the cache
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; what is in memory stays as it is


class LargePages:
    """Places tensors side by side in regions of large pages, which live as long as any of them."""

    def __init__(self) -> None:
        self._region: _Region | None = None

    def make_ready(self, num_bytes: int) -> None:
        """Begin to take so many bytes from the system, which would else be done page by page when
        they are first written to; does not wait."""
        if num_bytes == 0:
            return
        self._region = _region(num_bytes + num_bytes // 32 + _REGION)  # what is beyond is not taken
        if self._region is not None:
            args = (num_bytes,)
            threading.Thread(target=self._region.populate, args=args, daemon=True).start()

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor that holds anything; in memory as usual where there is none of this."""
        import torch

        size = math.prod(shape) * dtype.itemsize
        if self._region is None or size > self._region.num_free:
            self._region = _region(max(_REGION, size))
        if self._region is None or size == 0:
            return torch.empty(shape, dtype=dtype)
        memory, offset = self._region.take(size)
        count = math.prod(shape)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


class _Region:
    """Memory that begins with a large page."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._used = -address % _PAGE
        self._begin = address + self._used

    @property
    def num_free(self) -> int:
        """Bytes."""
        return len(self._memory) - self._used

    def take(self, size: int) -> tuple[mmap.mmap, int]:
        """The memory, and where in it so many bytes begin."""
        offset = self._used
        self._used = min(offset + size + -size % _ALIGNMENT, len(self._memory))
        return self._memory, offset

    def populate(self, num_bytes: int) -> None:
        """Take the first so many bytes from the system; without Python's lock, and whoever writes
        there meanwhile."""
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for offset in range(0, num_bytes, _REGION):
            size = min(_REGION, num_bytes - offset)
            if madvise(self._begin + offset, size, _POPULATE_WRITE):
                return


def _region(size: int) -> _Region | None:
    """At least so many bytes, or none."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return None
    try:
        memory = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(advice)
    except OSError:  # no memory, or a kernel without such pages
        return None
    return _Region(memory)
