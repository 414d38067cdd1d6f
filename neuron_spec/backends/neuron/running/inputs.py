"""The tensors that NxDI's applications take (`models/model_base.py`, `models/model_wrapper.py`).

Integers are int32, what the graphs are compiled for; the wrapper would convert int64. It also pads
everything to the graph's length, and rows to the batch: a row that is missing gets the first row's
inputs, and the cache of its slot the first row's entries. So every slot that holds a sequence has
to be in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DeviceParams = tuple[float, float, float]
"""top_k, top_p, temperature as NxDI's sampler takes them."""

GREEDY_PARAMS: DeviceParams = (1.0, 1.0, 1.0)
"""The best token alone. NxDI divides by the temperature, so that 0 would not do."""


@dataclass(frozen=True)
class Inputs:
    """One call.

    Attributes:
        tokens: [rows, n] int32 ids.
        seen: [rows, m] int32, 1 for every entry of the cache that the row may attend to.
        positions: [rows, n] int32.
        slots: [rows] int32, rising.
        params: [rows, 3] float32, see `DeviceParams`.
    """

    tokens: Tensor
    seen: Tensor
    positions: Tensor
    slots: Tensor
    params: Tensor

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of an application's `forward`."""
        return {
            "input_ids": self.tokens,
            "attention_mask": self.seen,
            "position_ids": self.positions,
            "seq_ids": self.slots,
            "sampling_params": self.params,
        }


def prompt_inputs(
    slot: int, prompt: Sequence[int], *, longest: int, params: DeviceParams = GREEDY_PARAMS
) -> Inputs:
    """A prompt for the context encoding graph.

    NxDI pads positions with 1 and takes the output of the largest position, the first of equals:
    the last token, but for a prompt of one token, whose padding would be larger. That one is padded
    here, with position 0, to the `longest` graph, which is the only one that NxDI does not pad.
    """
    length = len(prompt)
    width = longest if length == 1 else length
    tokens = torch.zeros(1, width, dtype=torch.int32)
    tokens[0, :length] = torch.tensor(prompt, dtype=torch.int32)
    positions = torch.zeros_like(tokens)
    positions[0, :length] = torch.arange(length)
    seen = torch.zeros_like(tokens)
    seen[0, :length] = 1
    return Inputs(tokens, seen, positions, _slots([slot]), _params([params]))


def step_inputs(
    slots: Sequence[int],
    tokens: Sequence[Sequence[int]],
    positions: Sequence[int],
    params: Sequence[DeviceParams] | None = None,
) -> Inputs:
    """A step of the decoding graph.

    Args:
        tokens: [rows][n] of every row its last token, and in a graph that verifies its drafts.
        positions: [rows] of the first token; the entries before it are in the cache.
    """
    first = torch.tensor(positions, dtype=torch.int32)[:, None]
    ids = torch.tensor(tokens, dtype=torch.int32)
    seen = torch.arange(max(positions), dtype=torch.int32) < first
    return Inputs(
        ids,
        seen.to(torch.int32),
        first + torch.arange(ids.shape[1], dtype=torch.int32),
        _slots(slots),
        _params(params or [GREEDY_PARAMS] * len(slots)),
    )


def _slots(slots: Sequence[int]) -> Tensor:
    return torch.tensor(slots, dtype=torch.int32)


def _params(params: Sequence[DeviceParams]) -> Tensor:
    return torch.tensor(params, dtype=torch.float32)
