"""Medusa on NxDI: the graph scores a tree; which tree, and where its entries go, are inputs.

NxDI's own loop (`utils/hf_adapter.py`, `_medusa_assisted_decoding`) is not followed, since its
graph departs from the target with it, in two ways that its inputs can mend:

- The graph gathers its hidden states from the smallest position id on (`models/model_base.py`,
  `_medusa_forward`), which leaves the tensor for every position but 0. Here one node stands at
  position 0 that nobody sees, so that the gather begins where it should. `forward` would take such
  a step for a prompt, therefore the step's wrapper is called itself. The graph is compiled for that
  node too: its length is a setting, its mask and places are inputs, and only NxDI's own loop has
  tables as long as the tree.
- Entries of accepted nodes are moved for one step and stored nowhere
  (`modules/kvcache/kv_cache_manager.py`). Here nothing is moved: the entries of the likeliest
  branch are written where they belong, and what was accepted beside it is run again in the next
  step, before the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuron_spec.backends.base import (
    GREEDY,
    Decoding,
    Limits,
    PrefillResult,
    StepResult,
    check_options,
)
from neuron_spec.backends.neuron.running.calls import Device
from neuron_spec.backends.neuron.running.inputs import Inputs, prompt_inputs, step_inputs
from neuron_spec.backends.neuron.running.slots import Slots
from neuron_spec.errors import BackendError
from neuron_spec.rules import greedy
from neuron_spec.trees import ROOT, Tree


@dataclass
class _Row:
    """A sequence between two steps.

    Attributes:
        num_held: entries in the cache that are where they belong.
        behind: committed tokens after those, which the next step runs again.
        root: the last committed token.
        top: [heads + 1, 10] best tokens after it, of the target (the root itself) and every head.
    """

    num_held: int
    behind: tuple[int, ...]
    root: int
    top: Tensor
    decoding: Decoding = GREEDY


@dataclass(frozen=True)
class Layout:
    """A step's nodes: what is run again, the tree, and filling nodes at position 0.

    Attributes:
        num_behind: nodes before the root.
        tree: what is drafted.
        length: nodes of the graph.
    """

    num_behind: int
    tree: Tree
    length: int

    @property
    def mask(self) -> Tensor:
        """[length, length] int32, which nodes each node sees: what is before the root, its
        ancestors, and itself."""
        mask = torch.eye(self.length, dtype=torch.int32)
        root, end = self.num_behind, self.num_behind + self.tree.num_nodes
        mask[:root, :root] = torch.ones(root, root, dtype=torch.int32).tril()
        mask[root:end, :root] = 1
        mask[root:end, root:end] = torch.tensor(self.tree.attention_mask, dtype=torch.int32)
        return mask

    @property
    def offsets(self) -> list[int]:
        """[length] of each node's position from the first node's; of filling nodes none."""
        return [*range(self.num_behind), *(self.num_behind + d for d in self.tree.depths)]

    @property
    def places(self) -> list[int]:
        """[length] where each node's entry is stored, from the first on: the branch of the best
        proposals in the order of its positions, then everything else."""
        main, first = self.main_branch, self.num_behind
        order = [*main, *(node for node in range(self.tree.num_nodes) if node not in main)]
        places = {first + node: first + place for place, node in enumerate(order)}
        return [places.get(node, node) for node in range(self.length)]

    @property
    def main_branch(self) -> list[int]:
        """The root and the first child of each, down to a leaf."""
        branch = [ROOT]
        while children := self.tree.children[branch[-1]]:
            branch.append(children[0])
        return branch


class MedusaSpeculator:
    """A `Speculator` of one sequence on a target with Medusa heads; greedy.

    The graph has a node more than the tree, for position 0. What is run again takes the places of
    the tree's last nodes, which are left out in that step.
    """

    def __init__(self, device: Device, *, tree: Tree, num_heads: int, limits: Limits) -> None:
        self._device, self._tree, self._num_heads = device, tree, num_heads
        self._limits = limits
        self._slots: Slots[_Row] = Slots(limits)

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
        inputs = prompt_inputs(slot, prompt_ids, longest=self._device.longest_prompt)
        found = self._device.encode(inputs).hidden_states
        top = self._checked(found, (self._num_heads + 1, 1))[:, 0]
        token = int(top[0, 0])
        self._slots[slot] = _Row(len(prompt_ids), (), token, top, decoding)
        return PrefillResult(token, None)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """See `Speculator.step`; errors as in `prefill`."""
        self._slots.check_draft_length(num_draft_tokens)
        return [
            self._step(slot, num_draft_tokens if self._slots[slot].decoding.speculate else 0)
            for slot in self._slots.numbers
        ]

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._slots.free(slot)

    def _step(self, slot: int, num_draft_tokens: int) -> StepResult:
        row, length = self._slots[slot], self._device.step_length
        room = length - 1 - len(row.behind) - 1  # all but the filling, what is behind, the root
        layout = Layout(len(row.behind), self._tree.first(min(num_draft_tokens, room)), length)
        nodes = _nodes(layout.tree, row)
        top = self._scored(slot, row, layout, nodes)
        first = layout.num_behind
        choices = top[0, first : first + layout.tree.num_nodes, 0].long().tolist()
        path, next_token = greedy.follow(layout.tree, nodes[1:], choices)
        tokens = (*(nodes[node] for node in path[1:]), next_token)
        self._slots[slot] = _after(row, layout, path, tokens, top[:, first + path[-1]])
        tree = layout.tree
        depth, branch = (tree.max_depth, tuple(path[1:])) if tree.num_draft_tokens else (None, None)
        return StepResult(slot, tokens, tree.num_draft_tokens, len(tokens) - 1, None, depth, branch)

    def _scored(self, slot: int, row: _Row, layout: Layout, nodes: Sequence[int]) -> Tensor:
        """[heads + 1, length, 10] best tokens after every node."""
        self._device.check_room(row.num_held)
        filling = [0] * (layout.length - layout.num_behind - len(nodes))
        inputs = step_inputs([slot], [[*row.behind, *nodes, *filling]], [row.num_held])
        positions = [row.num_held + offset for offset in layout.offsets] + filling
        with self._device.failing(f"step at position {row.num_held}"):
            found = self._device.application.medusa_speculation_model(
                *_wrapper_arguments(inputs, positions, layout, self._num_heads)
            )
        return self._checked(found, (self._num_heads + 1, 1, layout.length))[:, 0]

    def _checked(self, found: Any, shape: tuple[int, ...]) -> Tensor:
        if not isinstance(found, Tensor) or found.shape[:-1] != shape:
            raise BackendError(
                f"the Medusa graph gave tokens of shape {tuple(getattr(found, 'shape', ()))}: "
                f"expected {list(shape)} and the best ten"
            )
        return found


def _nodes(tree: Tree, row: _Row) -> list[int]:
    """The tree's ids: a node at depth d is of head d - 1, by its rank."""
    drafted = zip(tree.depths[1:], tree.ranks[1:], strict=True)
    return [row.root, *(int(row.top[depth, rank]) for depth, rank in drafted)]


def _wrapper_arguments(
    inputs: Inputs, positions: Sequence[int], layout: Layout, num_heads: int
) -> tuple[Any, ...]:
    """Of the step's `ModelWrapper`, in its order; `None`s for hidden states and adapters.

    What would be moved in the cache stays: entries 0 … heads are read as themselves.
    """
    start = int(inputs.positions[0, 0])
    places = [start + place for place in layout.places]
    unmoved = torch.arange(num_heads + 1, dtype=torch.int32)[None]
    return (
        inputs.tokens,
        inputs.seen,
        torch.tensor([positions], dtype=torch.int32),
        inputs.slots,
        inputs.params,
        None,
        None,
        unmoved,
        unmoved.clone(),
        layout.mask[None],
        torch.tensor([places], dtype=torch.int32),
    )


def _after(
    row: _Row, layout: Layout, path: Sequence[int], tokens: tuple[int, ...], top: Tensor
) -> _Row:
    """The row behind an accepted path of nodes, the root first."""
    main = layout.main_branch
    num_right = sum(1 for node, place in zip(path, main, strict=False) if node == place)
    held = row.num_held + layout.num_behind + num_right
    return _Row(held, tokens[num_right - 1 : -1], tokens[-1], top, row.decoding)
