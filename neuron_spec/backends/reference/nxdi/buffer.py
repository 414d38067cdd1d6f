"""NxDI's store for the feature that a draft starts the next step from."""

from __future__ import annotations

import torch
from torch import Tensor


class RollingBuffer:
    """Features by slot and position, the position modulo the length
    (`modules/eagle/hidden_state.py`): what is read at a position that was not written last is an
    older feature or zero, and no error."""

    def __init__(self, num_slots: int, length: int) -> None:
        self._num_slots, self._length = num_slots, length
        self._features: Tensor | None = None  # [slots, length, feature], once the width is known

    def put(self, slots: Tensor, positions: Tensor, features: Tensor) -> None:
        """Keep features [rows, feature] for the step that starts at `positions` [rows]."""
        if self._features is None:
            self._features = features.new_zeros(self._num_slots, self._length, features.shape[-1])
        self._features[slots, positions % self._length] = features

    def get(self, positions: Tensor) -> Tensor:
        """[rows, 1, feature] for slots 0 … rows - 1."""
        if self._features is None:
            raise ValueError("nothing was encoded before the first step")
        rows = torch.arange(len(positions))
        return self._features[rows, positions % self._length][:, None]
