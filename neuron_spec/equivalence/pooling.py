"""Outcomes too rare to tell anything share a cell.

They are pooled by what both samples show together, never by which system showed them, so that
pooling does not bias a test. For whole outputs that is a tree: an output counts as its longest
beginning that is common enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

MIN_COUNT = 10
"""Samples of both systems together below which an outcome is pooled."""
_OTHER = "<rare>"

Output = tuple[Hashable, ...]


def pooled(first: Sequence[Hashable], second: Sequence[Hashable]) -> np.ndarray[Any, Any]:
    """[2, cells] counts; outcomes that are rare in both together share a cell."""
    counts = Counter(first) + Counter(second)
    names = {outcome: outcome if n >= MIN_COUNT else _OTHER for outcome, n in counts.items()}
    sides = [Counter(names[outcome] for outcome in side) for side in (first, second)]
    cells = sorted({*sides[0], *sides[1]}, key=str)
    if _OTHER in cells and sum(side[_OTHER] for side in sides) < MIN_COUNT and len(cells) > 2:
        rarest = min((c for c in cells if c != _OTHER), key=lambda c: sides[0][c] + sides[1][c])
        for side in sides:
            side[rarest] += side.pop(_OTHER, 0)
        cells.remove(_OTHER)
    return np.array([[side[cell] for cell in cells] for side in sides])


def pooled_beginnings(first: Sequence[Output], second: Sequence[Output]) -> np.ndarray[Any, Any]:
    """[2, cells] counts of outputs, each as its longest beginning that is common enough."""
    counts = Counter(output[:n] for output in (*first, *second) for n in range(1, len(output) + 1))

    def cell(output: Output) -> Output:
        common = [n for n in range(1, len(output) + 1) if counts[output[:n]] >= MIN_COUNT]
        return output[: max(common, default=0)]

    return pooled([cell(output) for output in first], [cell(output) for output in second])
