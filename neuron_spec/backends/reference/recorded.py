"""Passes of a decoder that are recorded once a shape and replayed: CUDA graphs.

On a GPU the host needs longer to launch the kernels of a few tokens one by one than they take to
run. A graph launches all of a pass at once. It reads and writes the same memory every time, so that
its inputs are copied in and its outputs out, and what depends on positions is told by tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.attention import attend, bias_of
from neuron_spec.backends.reference.cache import SPAN_MULTIPLE, Window

MAX_TOKENS = 64
"""Passes of more, as of prompts, keep a GPU busy as they are, and have many shapes."""

Outputs = tuple[Tensor, Tensor | None]
Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes what reads and writes tensors in place and may be run; returns what does the same again."""


class CudaGraphs:
    """Records on the current CUDA device; all graphs share their working memory."""

    _WARM_UPS = 3  # libraries set themselves up in their first calls, which cannot be recorded

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """See `Record`."""
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(self._WARM_UPS):
                run()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on with what is none of this recording's.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        self._pool = graph.pool()
        return graph.replay


class FixedWindow:
    """A `Window` whose places are told by tensors, so that a recorded pass serves all of them.

    Attributes:
        rows: the slots.
        places, positions: [rows, n] where every entry is written, and its position.
        mask: [rows, 1, n, span] bool, where a query may look.
    """

    def __init__(self, rows: slice, places: Tensor, positions: Tensor, mask: Tensor) -> None:
        self.rows, self.places, self.positions, self.mask = rows, places, positions, mask
        self._bias: Tensor | None = None

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: tuple[Tensor, Tensor]
    ) -> Tensor:
        """See `Window.attend`."""
        keys, values = self._stored(kv[0], key), self._stored(kv[1], value)
        if self._bias is None:  # the same in every layer
            self._bias = bias_of(self.mask, query.shape[2] // keys.shape[1], query.dtype)
        return attend(query, keys, values, self._bias)

    def silu(self, x: Tensor) -> Tensor:
        """The activation, elementwise."""
        return F.silu(x)

    def _stored(self, cache: Tensor, new: Tensor) -> Tensor:
        rows = cache[self.rows]
        index = torch.arange(rows.shape[0], device=cache.device)[:, None]
        rows[index, :, self.places] = new
        return rows[:, :, : self.mask.shape[3]]


@dataclass(frozen=True)
class _Pass:
    """A recorded pass: `replay` makes `outputs` of what `inputs` hold."""

    inputs: tuple[Tensor, ...]
    outputs: Outputs
    replay: Callable[[], None]


class RecordedPasses:
    """Runs what `Decoder.run` runs, each shape recorded when it first comes."""

    def __init__(
        self, run: Callable[[Tensor, FixedWindow], Outputs], record: Record, *, length: int
    ) -> None:
        """`length`: of the cache."""
        self._run, self._record, self._length = run, record, length
        self._passes: dict[tuple[int, ...], _Pass] = {}

    def takes(self, num_tokens: int) -> bool:
        """Whether passes of so many tokens are recorded."""
        return num_tokens <= MAX_TOKENS

    def __call__(self, x: Tensor, window: Window) -> Outputs:
        """Inputs [rows, n, hidden] -> what `Decoder.run` returns."""
        span = self._span(window.end)
        given = (x, window.places, window.positions, window.mask_over(span))
        key = (window.first_slot, *x.shape[:2], span)
        if key not in self._passes:
            self._passes[key] = self._recorded(window.rows, given)
        recorded = self._passes[key]
        for kept, new in zip(recorded.inputs, given, strict=True):
            kept.copy_(new)
        recorded.replay()
        output, tapped = recorded.outputs
        return output.clone(), None if tapped is None else tapped.clone()

    def _span(self, end: int) -> int:
        """How much of the cache is read for what ends there; few spans, so few recordings."""
        span = SPAN_MULTIPLE
        while span < end:
            span *= 2
        return min(span, self._length)

    def _recorded(self, rows: slice, given: tuple[Tensor, ...]) -> _Pass:
        x, places, positions, mask = inputs = tuple(tensor.clone() for tensor in given)

        def run() -> Outputs:
            return self._run(x, FixedWindow(rows, places, positions, mask))

        output, tapped = run()

        def rerun() -> None:
            again, tapped_again = run()
            output.copy_(again)
            if tapped is not None and tapped_again is not None:
                tapped.copy_(tapped_again)

        return _Pass(inputs, (output, tapped), self._record(rerun))
