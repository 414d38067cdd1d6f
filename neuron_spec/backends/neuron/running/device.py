"""Targets whose graph chooses the tokens: fused speculation, or sampling on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from neuron_spec.backends.base import (
    GREEDY,
    Decoding,
    Limits,
    PrefillResult,
    StepResult,
    check_options,
)
from neuron_spec.backends.neuron.running.calls import Device
from neuron_spec.backends.neuron.running.inputs import prompt_inputs, step_inputs
from neuron_spec.backends.neuron.running.outputs import (
    fused_tokens,
    sampled_tokens,
    without_filling,
)
from neuron_spec.backends.neuron.running.sampler import DeviceSampler
from neuron_spec.backends.neuron.running.slots import Row, Slots
from neuron_spec.trees import Tree


class Graph(Protocol):
    """How the tokens of a graph are read."""

    @property
    def tree(self) -> Tree:
        """What it drafts in every step; a chain is the tree of one branch."""

    def first(self, outputs: Any, prompt_length: int) -> int:
        """The first new token, out of context encoding."""

    def accepted(self, outputs: Any, rows: Sequence[Row]) -> list[tuple[int, ...]]:
        """What a step accepted, row by row, the target's own token last."""


class FusedGraph:
    """A fused graph: a draft model, EAGLE or EAGLE-3, inside the target's graph."""

    def __init__(self, tree: Tree, *, draws: bool = False, pad_token_id: int = 0) -> None:
        self.tree, self._draws, self._pad_token_id = tree, draws, pad_token_id

    def first(self, outputs: Any, prompt_length: int) -> int:
        """See `Graph.first`."""
        return fused_tokens(outputs, [prompt_length - 1], most=1)[0][0]

    def accepted(self, outputs: Any, rows: Sequence[Row]) -> list[tuple[int, ...]]:
        """See `Graph.accepted`."""
        starts = [row.position for row in rows]
        found = fused_tokens(outputs, starts, most=self.tree.max_depth + 1)
        if not self._draws:
            return found
        pairs = zip(found, rows, strict=True)
        return [
            without_filling(tokens, self._pad_token_id, row.decoding.stop_token_ids)
            for tokens, row in pairs
        ]


class SamplingGraph:
    """A target without a draft that samples on the device."""

    tree = Tree.chain(0)

    def first(self, outputs: Any, prompt_length: int) -> int:
        """See `Graph.first`."""
        return sampled_tokens(outputs, 1)[0][0]

    def accepted(self, outputs: Any, rows: Sequence[Row]) -> list[tuple[int, ...]]:
        """See `Graph.accepted`."""
        return sampled_tokens(outputs, len(rows))


class DeviceSpeculator:
    """A `Speculator` around a graph that drafts and verifies, or samples, by itself.

    A fused graph drafts in every step what it was compiled for: asked for less it drafts as much,
    and says so. Asked for nothing, of all rows or of one that must not speculate, it keeps the
    target's own token alone: the output is the target's, the time is not.
    """

    def __init__(
        self, device: Device, graph: Graph, *, sampler: DeviceSampler, limits: Limits
    ) -> None:
        self._device, self._graph, self._sampler = device, graph, sampler
        self._limits = limits
        self._slots: Slots[Row] = Slots(limits)

    @property
    def limits(self) -> Limits:
        """What it can hold."""
        return self._limits

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        """See `Speculator.prefill`.

        Raises:
            RequestError: an option that the graph does not have.
            BackendError: NxDI failed.
        """
        self._slots.check_prompt(slot, prompt_ids)
        check_options(decoding.sampling, self._limits)
        inputs = prompt_inputs(
            slot,
            prompt_ids,
            longest=self._device.longest_prompt,
            params=self._sampler.params(decoding),
        )
        token = self._graph.first(self._device.encode(inputs), len(prompt_ids))
        self._slots[slot] = Row(token, len(prompt_ids), decoding)
        return PrefillResult(token, None)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """See `Speculator.step`; errors as in `prefill`."""
        self._slots.check_draft_length(num_draft_tokens)
        if not self._slots:
            return []
        slots, rows = self._slots.numbers, self._slots.rows
        inputs = step_inputs(
            slots,
            [[row.token] for row in rows],
            [row.position for row in rows],
            [self._sampler.params(row.decoding) for row in rows],
        )
        accepted = self._graph.accepted(self._device.step(inputs), rows)
        results = []
        for slot, row, tokens in zip(slots, rows, accepted, strict=True):
            speculates = num_draft_tokens > 0 and row.decoding.speculate
            results.append(self._result(slot, tokens if speculates else tokens[:1], speculates))
            row.advance(results[-1].tokens)
        return results

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._slots.free(slot)

    def _result(self, slot: int, tokens: tuple[int, ...], speculates: bool) -> StepResult:
        tree = self._graph.tree
        num_drafted = tree.num_draft_tokens if speculates else 0
        is_tree = num_drafted > tree.max_depth
        depth = tree.max_depth if is_tree else None
        return StepResult(slot, tokens, num_drafted, len(tokens) - 1, None, depth)
