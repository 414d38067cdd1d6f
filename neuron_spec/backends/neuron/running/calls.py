"""One loaded application, and who failed if it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from neuron_spec.backends.neuron.running.inputs import Inputs
from neuron_spec.errors import BackendError, shown

_MAX_MESSAGE = 400


@dataclass(frozen=True)
class Device:
    """An NxDI application that is loaded.

    Attributes:
        application: a `NeuronBaseForCausalLM`.
        role: `target` or `draft`, for messages.
        longest_prompt: length of the longest context encoding graph.
        num_positions: of the cache.
        step_length: positions that a step writes.
    """

    application: Any
    role: str
    longest_prompt: int
    num_positions: int
    step_length: int

    def encode(self, inputs: Inputs) -> Any:
        """Context encoding of one prompt.

        Raises:
            BackendError: whatever NxDI or the runtime raised.
        """
        length = int(inputs.seen.sum())
        with self.failing(f"context encoding of {length} tokens in slot {int(inputs.slots)}"):
            return self.application.forward(**inputs.arguments)

    def step(self, inputs: Inputs) -> Any:
        """A step of the decoding graph; errors as of `encode`.

        Raises:
            ValueError: it reaches beyond the cache.
        """
        starts = inputs.positions[:, 0].tolist()
        self.check_room(max(starts))
        with self.failing(f"step at position{'s' * (len(starts) > 1)} {str(starts)[1:-1]}"):
            return self.application.forward(**inputs.arguments)

    def check_room(self, start: int) -> None:
        """Whether the cache has room for a step from `start` on.

        Raises:
            ValueError: it has not.
        """
        if start + self.step_length > self.num_positions:
            raise ValueError(
                f"a step of {self.step_length} positions from {start} on: the cache has "
                f"{self.num_positions}"
            )

    @contextmanager
    def failing(self, call: str) -> Iterator[None]:
        """Name the call in what NxDI raises. Nothing is left of a failed call: the next prompt
        overwrites its slot's cache."""
        try:
            yield
        except Exception as error:
            reason = shown(str(error), _MAX_MESSAGE)
            raise BackendError(
                f"NxD Inference failed in the {self.role}'s {call}: {type(error).__name__} {reason}"
            ) from error
