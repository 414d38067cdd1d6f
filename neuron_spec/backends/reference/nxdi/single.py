"""Medusa and unfused speculation behind the seam: applications of one sequence."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from neuron_spec.backends.base import Decoding
from neuron_spec.backends.reference.nxdi.medusa import Medusa, MedusaState
from neuron_spec.backends.reference.nxdi.speculator import Committed
from neuron_spec.backends.reference.nxdi.unfused import Unfused


class MedusaApplication:
    """See `Application`. NxDI's loop hands out a step's base token with that step; the seam hands
    it out with the step before, which found it."""

    def __init__(self, medusa: Medusa) -> None:
        self._medusa = medusa
        self._state: MedusaState | None = None

    def begin(self, slot: int, prompt: Sequence[int], decoding: Decoding) -> tuple[int, Tensor]:
        """See `Application.begin`."""
        self._state, logits = self._medusa.encode(prompt)
        return self._next_token(), logits[0]

    def step(self, slots: Sequence[int]) -> list[Committed]:
        """See `Application.step`."""
        assert self._state is not None
        step = self._medusa.step(self._state)
        self._state = step.state
        tokens = (*step.emitted[1:], self._next_token())
        depth = int(self._medusa.tables.depths.max())
        return [Committed(tokens, len(step.nodes) - 1, depth)]

    def decode(self, slots: Sequence[int]) -> list[int]:
        """See `Application.decode`."""
        assert self._state is not None
        self._state = self._medusa.decode(self._state)
        return [self._next_token()]

    def release(self, slot: int) -> None:
        """See `Application.release`."""
        self._state = None

    def _next_token(self) -> int:
        assert self._state is not None
        return int(self._state.top[0, 0])


class UnfusedApplication:
    """See `Application`."""

    def __init__(self, unfused: Unfused) -> None:
        self._unfused = unfused
        self._token, self._position = 0, 0
        self._eos_token_ids: frozenset[int] = frozenset()

    def begin(self, slot: int, prompt: Sequence[int], decoding: Decoding) -> tuple[int, Tensor]:
        """See `Application.begin`; the draft stops at the ids that end an output."""
        begun = self._unfused.encode(prompt)
        self._token, self._position = begun.token, len(prompt)
        self._eos_token_ids = decoding.stop_token_ids
        return begun.token, begun.logits

    def step(self, slots: Sequence[int]) -> list[Committed]:
        """See `Application.step`."""
        step = self._unfused.step(self._token, self._position, eos_token_ids=self._eos_token_ids)
        self._advance(step.emitted)
        return [Committed(step.emitted, len(step.calls) - 1)]

    def decode(self, slots: Sequence[int]) -> list[int]:
        """See `Application.decode`."""
        logits = self._unfused.decode(self._token, self._position)
        self._advance([int(logits.argmax())])
        return [self._token]

    def release(self, slot: int) -> None:
        """See `Application.release`."""

    def _advance(self, tokens: Sequence[int]) -> None:
        self._token, self._position = tokens[-1], self._position + len(tokens)
