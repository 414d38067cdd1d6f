"""Memory for weights, which every pass reads from end to end: in large pages where Linux has them.

Pages of 4 KiB have to be found one by one, and processors do not read ahead beyond one's end.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

_PAGE = 2 << 20  # bytes; of x86-64, and of Arm with pages of 4 KiB
_REGION = 64 << 20  # pages that nothing is written to are not taken
_ALIGNMENT = 64  # a line of the cache


class LargePages:
    """Copies tensors side by side into regions of large pages, which live as long as any copy."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy; in memory as usual where there is none of this."""
        size = tensor.numel() * tensor.element_size()
        if size > self._free.numel():
            self._free = _region(max(_REGION, size))
        if size > self._free.numel():
            return tensor.clone(memory_format=torch.contiguous_format)
        place, self._free = self._free[:size], self._free[size + -size % _ALIGNMENT :]
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _region(size: int) -> Tensor:
    """At least so many bytes that begin with a page, or none."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return torch.empty(0, dtype=torch.uint8)
    try:
        region = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        region.madvise(advice)
    except OSError:  # no memory, or a kernel without such pages
        return torch.empty(0, dtype=torch.uint8)
    whole = torch.frombuffer(region, dtype=torch.uint8)
    return whole[-whole.data_ptr() % _PAGE :]
