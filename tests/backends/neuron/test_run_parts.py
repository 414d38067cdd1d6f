"""The pure parts of the runner: inputs, outputs, options, Medusa's layout, draft bookkeeping."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.backends.base import Decoding
from neuron_spec.backends.neuron.running.draft import _Row
from neuron_spec.backends.neuron.running.inputs import GREEDY_PARAMS, prompt_inputs, step_inputs
from neuron_spec.backends.neuron.running.medusa import Layout
from neuron_spec.backends.neuron.running.outputs import (
    fused_tokens,
    logits_of,
    sampled_tokens,
    without_filling,
)
from neuron_spec.backends.neuron.running.sampler import DeviceSampler
from neuron_spec.errors import BackendError
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.trees import Tree

PATHS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), min_size=1, max_size=8
)
TREES = PATHS.map(
    lambda paths: Tree.from_paths(sorted({p[:n] for p in paths for n in range(1, len(p) + 1)}))
)


@given(st.lists(st.integers(0, 127), min_size=2, max_size=20), st.integers(0, 3))
def test_a_prompt_is_handed_over_as_it_is(prompt: list[int], slot: int) -> None:
    inputs = prompt_inputs(slot, prompt, longest=32)
    assert inputs.tokens.tolist() == [prompt]
    assert inputs.positions.tolist() == [list(range(len(prompt)))]
    assert inputs.seen.tolist() == [[1] * len(prompt)]
    assert (inputs.slots.tolist(), inputs.params.tolist()) == ([slot], [list(GREEDY_PARAMS)])
    integers = (inputs.tokens, inputs.positions, inputs.seen, inputs.slots)
    assert {tensor.dtype for tensor in integers} == {torch.int32}


def test_a_prompt_of_one_token_is_padded_so_that_its_position_is_the_first_of_the_largest() -> None:
    inputs = prompt_inputs(0, [9], longest=8)
    assert inputs.tokens.tolist() == [[9, *[0] * 7]]
    assert inputs.positions.tolist() == [[0] * 8]
    assert inputs.seen.tolist() == [[1, *[0] * 7]]


@given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.integers(1, 5))
def test_rows_of_a_step_see_what_stands_before_their_first_position(
    positions: list[int], width: int
) -> None:
    tokens = [[7] * width for _ in positions]
    inputs = step_inputs(range(len(positions)), tokens, positions)
    assert inputs.seen.shape == (len(positions), max(positions))
    assert inputs.seen.sum(dim=1).tolist() == positions
    for row, position in enumerate(positions):
        assert bool(inputs.seen[row, :position].all())
        assert inputs.positions[row].tolist() == list(range(position, position + width))


def fused(accepted: list[list[int]], after: list[int]) -> Any:
    outputs = [torch.tensor(accepted), None, None, torch.tensor(after)[:, None]]
    return SimpleNamespace(fused_outputs=outputs)


def test_tokens_are_counted_by_positions() -> None:
    outputs = fused([[5, 6, -1, -1], [7, 0, 0, 9]], [12, 24])
    assert fused_tokens(outputs, [10, 20], most=4) == [(5, 6), (7, 0, 0, 9)]


@pytest.mark.parametrize(
    ("accepted", "after"),
    [([5, 6, -1], 10), ([5, 6, -1], 9), ([5, 6, 7], 14), ([5, -1, -1], 12)],
)
def test_outputs_that_no_step_can_have(accepted: list[int], after: int) -> None:
    with pytest.raises(BackendError, match=r"from position 10 .* expected 1 … 3 tokens"):
        fused_tokens(fused([accepted], [after]), [10], most=3)


def test_a_padding_id_behind_a_sampled_token_is_dropped_unless_it_ends_the_output() -> None:
    assert without_filling((5, 6, 0), 0, frozenset([2])) == (5, 6)
    assert without_filling((5, 6, 0), 0, frozenset([0])) == (5, 6, 0)
    assert without_filling((0,), 0, frozenset()) == (0,)
    assert without_filling((0, 5), 0, frozenset()) == (0, 5)


def test_outputs_of_other_shapes() -> None:
    with pytest.raises(BackendError, match="2 tokens for 1 rows"):
        sampled_tokens(SimpleNamespace(tokens=torch.tensor([3, 4])), 1)
    for logits in (None, torch.zeros(1, 2, 8), torch.zeros(1, 1, 7)):
        with pytest.raises(BackendError, match=r"expected \[1, 1, 8\]"):
            logits_of(SimpleNamespace(logits=logits), (1, 1), 8)
    padded = SimpleNamespace(logits=torch.zeros(1, 1, 10, dtype=torch.bfloat16))
    assert logits_of(padded, (1, 1), 8).shape == (1, 1, 8)
    assert logits_of(padded, (1, 1), 8).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, GREEDY_PARAMS),
        ({"top_k": 5, "top_p": 0.5}, GREEDY_PARAMS),  # greedy: NxDI would divide by 0
        ({"temperature": 0.5}, (64.0, 1.0, 0.5)),  # to NxDI top_k 0 is not "all"
        ({"temperature": 0.5, "top_k": -1}, (64.0, 1.0, 0.5)),
        ({"temperature": 2.0, "top_k": 5, "top_p": 0.25}, (5.0, 0.25, 2.0)),
    ],
)
def test_options_as_the_device_takes_them(
    options: dict[str, Any], expected: tuple[float, ...]
) -> None:
    decoding = Decoding(SamplingParams(**options))
    assert DeviceSampler(draws=True, global_topk=64).params(decoding) == expected
    assert DeviceSampler(draws=False).params(decoding) == GREEDY_PARAMS


@given(TREES, st.integers(0, 3), st.integers(1, 3))
def test_layout_of_a_medusa_step(tree: Tree, behind: int, filling: int) -> None:
    layout = Layout(behind, tree, behind + tree.num_nodes + filling)
    mask, places = layout.mask.bool(), layout.places
    assert sorted(places) == list(range(layout.length))  # every node has a place of its own
    for node in range(tree.num_nodes):
        row, route = behind + node, tree.route(node)
        seen = {*range(behind), *(behind + above for above in route)}
        assert {index for index in range(layout.length) if mask[row, index]} == seen
        assert layout.offsets[row] == behind + len(route) - 1
    for row in range(behind):
        assert mask[row].tolist() == [index <= row for index in range(layout.length)]
    for row in range(behind + tree.num_nodes, layout.length):
        assert mask[row].tolist() == [index == row for index in range(layout.length)]
    for node in layout.main_branch:  # stored where it belongs if it is accepted
        assert places[behind + node] == layout.offsets[behind + node]
    assert places[:behind] == list(range(behind))


@given(st.data())
def test_what_a_drafts_cache_holds(data: st.DataObject) -> None:
    """Against a cache that is written position by position, as the draft's is."""
    row, cache = _Row([1, 2, 3], 2), {0: 1, 1: 2}
    for _ in range(data.draw(st.integers(1, 4))):
        for place in range(row.num_held, len(row.tokens)):
            cache[place] = row.tokens[place]
        row.num_held = len(row.tokens)
        row.drafts = tuple(data.draw(st.lists(st.integers(0, 2), max_size=3)))
        for depth, draft in enumerate(row.drafts):
            cache[len(row.tokens) + depth] = draft
        row.commit(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4)))
        held = [cache[place] for place in range(row.num_held)]
        assert held == row.tokens[: row.num_held]
        assert row.tokens[row.num_held :] == row.missing
