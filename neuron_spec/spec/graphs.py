"""Lengths of the graphs that a spec with a [neuron] table is compiled to: pure arithmetic.

Sources: NxDI `models/config.py`, `modules/autobucketing.py`, `models/model_wrapper.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_spec.spec.schema import BuildSpec
from neuron_spec.trees import Tree

TILE = 128  # the KV cache of fused graphs is tiled by so many positions, and only by whole tiles


@dataclass(frozen=True)
class Lengths:
    """In tokens.

    Attributes:
        total: positions of the KV cache.
        context: the longest prompt graph.
        context_buckets: all prompt graphs, shortest first; empty: one of `context`.
        token_buckets: all decoding graphs, shortest first; empty: one of `total`.
    """

    total: int
    context: int
    context_buckets: tuple[int, ...] = ()
    token_buckets: tuple[int, ...] = ()

    @property
    def prompt_graphs(self) -> tuple[int, ...]:
        """Lengths of all prompt graphs, also where there is only one."""
        return self.context_buckets or (self.context,)


def tree_of(spec: BuildSpec) -> Tree:
    """The drafted tree; a chain is the tree of one branch."""
    if spec.draft.tree:
        return Tree.from_paths(spec.draft.tree).first(spec.num_draft_tokens)
    return Tree.chain(spec.num_draft_tokens)


def step_length(spec: BuildSpec) -> int:
    """Positions that a step's graph has: k + 1, the nodes of a tree, 1 without a draft; NxDI's
    speculation_length. One more with Medusa, whose graph needs a node at position 0 (see
    `backends/neuron/running/medusa.py`)."""
    return tree_of(spec).num_nodes + (spec.draft.method == "medusa")


def needed_positions(spec: BuildSpec, step: int) -> int:
    """Room for a whole step behind the last token, so that a request always reaches its limit."""
    return spec.shape.max_total_tokens + (step if spec.speculates else 0)


def lengths_of(spec: BuildSpec, step: int) -> Lengths:
    """Lengths for steps of so many positions; the user's own buckets decide where they are given.

    Args:
        step: positions of a step's graph, see `step_length`.
    """
    neuron = spec.neuron
    assert neuron is not None
    given_context, given_total = neuron.context_encoding_buckets, neuron.token_generation_buckets
    total = given_total[-1] if given_total else _tiled(needed_positions(spec, step))
    context = min(total, -(-spec.shape.max_prompt_tokens // TILE) * TILE)
    if not neuron.bucketing:
        return Lengths(total, context)
    context = given_context[-1] if given_context else context
    context_buckets = given_context or tuple(b for b in _buckets(context) if b != step)
    return Lengths(total, context, context_buckets, given_total or _buckets(total))


def _tiled(length: int) -> int:
    return length if length <= TILE else -(-length // TILE) * TILE


def _buckets(length: int) -> tuple[int, ...]:
    """Powers of two from 128, then the length; one that is nearly the length would be no gain."""
    powers = (TILE << shift for shift in range(length.bit_length()))
    return (*(power for power in powers if 4 * power <= 3 * length), length)
