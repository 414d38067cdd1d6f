"""A checkpoint's parameters by their keys, and the products they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from neuron_spec.backends.reference.linear import Linear
from neuron_spec.backends.reference.native.binding import Native


@dataclass(frozen=True)
class Parameters:
    """What a model is made of.

    Attributes:
        read: a parameter by its key, in the model's dtype and on its device.
        has: whether there is one.
        native: the compiled kernels, where products go through them.
    """

    read: Callable[[str], Tensor]
    has: Callable[[str], bool]
    native: Native | None = None

    def linear(self, *names: str) -> Linear:
        """The product of `name.weight`, with `name.bias` where there is one; of several names, side
        by side."""
        weights = [self.read(f"{name}.weight") for name in names]
        biases = [self.read(f"{name}.bias") for name in names if self.has(f"{name}.bias")]
        return self.product(weights, biases)

    def product(self, weights: list[Tensor], biases: list[Tensor] | None = None) -> Linear:
        """The same of tensors."""
        return Linear(weights, torch.cat(biases) if biases else None, native=self.native)

    def optional(self, name: str) -> Tensor | None:
        """A parameter, or None."""
        return self.read(name) if self.has(name) else None
