"""Random numbers tied to positions: against plain integers, and that they look random."""

from __future__ import annotations

import rule_laws as laws
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import TREES

from neuron_spec.rules.uniforms import (
    ACCEPT_STREAM,
    DRAFT_STREAM,
    SAMPLE_STREAM,
    Uniforms,
    uniform_at,
)
from neuron_spec.trees import Tree

MASK = 2**64 - 1


def mixed(state: int) -> int:
    """SplitMix64's step and output on Python's integers."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@settings(deadline=None, max_examples=50)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(0, 100))
def test_it_is_splitmix64(seed: int, position: int, stream: int) -> None:
    expected = mixed((mixed((mixed(seed & MASK) + position) & MASK) + stream) & MASK) >> 40
    found = uniform_at(torch.tensor([seed]), torch.tensor([position]), stream)
    assert found.tolist() == [expected / 2**24]
    assert found.dtype == torch.float32


def test_splitmix64_is_the_published_one() -> None:
    """First output of the published generator for the seed 0 (Vigna, splitmix64.c)."""
    assert mixed(0) == 0xE220A8397B1DCDAF


def test_numbers_are_uniform_over_positions_seeds_and_streams() -> None:
    """Chi-square on 16 cells; each fails once in 10^6 seeds."""
    num = 20_000
    zeros, many = torch.zeros(num, dtype=torch.int64), torch.arange(num)
    for numbers in (
        uniform_at(zeros, many, SAMPLE_STREAM),
        uniform_at(many, zeros, SAMPLE_STREAM),
        uniform_at(zeros, zeros, many),
        uniform_at(many, many, ACCEPT_STREAM),
    ):
        assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
        counts = torch.bincount((numbers * 16).long(), minlength=16)
        assert laws.chi_square_p_value(counts, torch.full((16,), 1 / 16)) > 1e-6


def test_streams_and_neighbours_do_not_follow_each_other() -> None:
    """Pairs on 8 x 8 cells: the streams of one position, and one stream of two positions."""
    seeds, many = torch.zeros(20_000, dtype=torch.int64), torch.arange(20_000)
    for first, second in (
        (uniform_at(seeds, many, SAMPLE_STREAM), uniform_at(seeds, many, ACCEPT_STREAM)),
        (uniform_at(seeds, many, SAMPLE_STREAM), uniform_at(seeds, many, DRAFT_STREAM)),
        (uniform_at(seeds, many, SAMPLE_STREAM), uniform_at(seeds, many + 1, SAMPLE_STREAM)),
        (uniform_at(seeds, many, SAMPLE_STREAM), uniform_at(seeds + 1, many, SAMPLE_STREAM)),
        (uniform_at(seeds, many, SAMPLE_STREAM), uniform_at(seeds + 1, many - 1, SAMPLE_STREAM)),
    ):
        cells = (first * 8).long() * 8 + (second * 8).long()
        counts = torch.bincount(cells, minlength=64)
        assert laws.chi_square_p_value(counts, torch.full((64,), 1 / 64)) > 1e-6


def test_a_number_belongs_to_its_position_not_to_the_step() -> None:
    """Steps of other lengths and other batches see the same numbers where they overlap."""
    seeds, positions = torch.tensor([5, 6]), torch.tensor([10, 20])
    whole = Uniforms.at_positions(seeds, positions, Tree.chain(4))
    later = Uniforms.at_positions(seeds[1:], positions[1:] + 2, Tree.chain(2))
    assert later.accept[0].equal(whole.accept[1, 2:])
    assert later.sample[0].equal(whole.sample[1, 2:])


def test_siblings_have_numbers_of_their_own() -> None:
    tree = TREES["wide"]  # depth 1: three siblings; depth 2: an only child under 1 and under 3
    numbers = Uniforms.at_positions(torch.tensor([1]), torch.tensor([7]), tree)
    assert numbers.sample.shape == (1, 3)
    first, second, third, below, other = numbers.accept[0].tolist()
    assert len({first, second, third, below}) == 4
    assert below == other  # one of the two is visited at most
    chain = Uniforms.at_positions(torch.tensor([1]), torch.tensor([7]), Tree.chain(2))
    assert numbers.sample.equal(chain.sample)
    assert chain.accept[0].tolist() == [first, below]


def test_every_decision_has_its_position_and_stream() -> None:
    seeds, positions = torch.tensor([3]), torch.tensor([40])
    numbers = Uniforms.at_positions(seeds, positions, Tree.from_paths([[0], [1], [0, 0]]))
    accept = [(40, ACCEPT_STREAM), (40, ACCEPT_STREAM + 1), (41, ACCEPT_STREAM)]
    sample = [(40, SAMPLE_STREAM), (41, SAMPLE_STREAM), (42, SAMPLE_STREAM)]
    for found, places in ((numbers.accept, accept), (numbers.sample, sample)):
        for number, (position, stream) in zip(found[0], places, strict=True):
            assert number == uniform_at(seeds, torch.tensor([position]), stream)
    assert len({SAMPLE_STREAM, DRAFT_STREAM, ACCEPT_STREAM}) == 3
    assert max(SAMPLE_STREAM, DRAFT_STREAM) < ACCEPT_STREAM
