"""The random numbers of verification: tied to output positions, not to steps or drafts.

A request with a seed gets the same number for the same decision at the same position, however its
output is cut into steps and whoever shares the batch. That is what makes `sample-match` give the
same tokens with any draft and with none, and every rule give the same tokens on a second run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuron_spec.trees import Tree

# Streams: which decision at a position a number is for. A draft that samples has its own, since its
# numbers must not be those of the test it is put to.
SAMPLE_STREAM = 0
DRAFT_STREAM = 1
ACCEPT_STREAM = 2  # and upwards: one a sibling


@dataclass(frozen=True)
class Uniforms:
    """Independent draws in [0, 1) for one step.

    Attributes:
        accept: [batch, k] float, one a drafted token (node i of a tree: column i - 1).
        sample: [batch, depth + 1] float, one for each place where the target's own token can stand:
            column n is used when n drafted tokens were accepted.
    """

    accept: Tensor
    sample: Tensor

    @classmethod
    def at_positions(cls, seeds: Tensor, first_positions: Tensor, tree: Tree) -> Uniforms:
        """The numbers of a step whose first new token stands at `first_positions`.

        Args:
            seeds: [batch] int64, one a request.
            first_positions: [batch] int64 position in the sequence of the token after the root.
            tree: the tree of the step; `Tree.chain(k)` for a chain.
        """
        device = seeds.device
        depths = torch.tensor(tree.depths[1:], dtype=torch.int64, device=device)
        siblings = torch.tensor(tree.sibling_numbers[1:], dtype=torch.int64, device=device)
        places = torch.arange(tree.max_depth + 1, device=device)
        seeds, first = seeds[:, None], first_positions[:, None]
        return cls(
            accept=uniform_at(seeds, first + depths - 1, ACCEPT_STREAM + siblings),
            sample=uniform_at(seeds, first + places, SAMPLE_STREAM),
        )


def uniform_at(seeds: Tensor, positions: Tensor, stream: Tensor | int) -> Tensor:
    """A number in [0, 1) for every (seed, position, stream), broadcast together; float32.

    A hash and not a generator: any number can be had without those before it. Each part is mixed in
    by the output function of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom
    number generators"); the upper 24 bits make the number, as many as a float32 below 1 holds.
    """
    state = _mixed(seeds)
    state = _mixed(state + positions)
    state = _mixed(state + stream)
    return _upper_bits(state, 24).float() * 2.0**-24


_GOLDEN_GAMMA = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number
_FIRST_FACTOR = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_SECOND_FACTOR = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def _mixed(state: Tensor) -> Tensor:
    state = state + _GOLDEN_GAMMA
    state = (state ^ _upper_bits(state, 64 - 30)) * _FIRST_FACTOR
    state = (state ^ _upper_bits(state, 64 - 27)) * _SECOND_FACTOR
    return state ^ _upper_bits(state, 64 - 31)


def _upper_bits(state: Tensor, num_bits: int) -> Tensor:
    """The upper bits of int64 as a number: a shift without sign."""
    return (state >> (64 - num_bits)) & ((1 << num_bits) - 1)
