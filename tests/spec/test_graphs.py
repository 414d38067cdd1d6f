"""Room for a whole step behind the last token, in graphs of lengths that NxDI can tile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.spec import BuildSpec
from neuron_spec.spec.graphs import Lengths, lengths_of, step_length, tree_of


def make_spec(prompt: int, total: int, k: int = 0, method: str = "", **neuron: Any) -> BuildSpec:
    draft: dict[str, Any] = {"method": "none"}
    if k:
        draft = {"method": method or "ngram", "num_draft_tokens": k}
        draft |= {"model": "d"} if method else {}
    return BuildSpec.model_validate(
        {
            "target": {"model": "t"},
            "draft": draft,
            "shape": {"max_prompt_tokens": prompt, "max_total_tokens": total},
            "neuron": {"instance": "trn2.3xlarge", **neuron},
        }
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (make_spec(1024, 2048), (2048, 1024)),  # a target alone needs no room
        (make_spec(1024, 2048, 4), (2176, 1024)),
        (make_spec(1024, 2043, 4), (2048, 1024)),
        (make_spec(1024, 2044, 4), (2176, 1024)),
        (make_spec(1000, 2043, 4), (2048, 1024)),
        (make_spec(2040, 2043, 4), (2048, 2048)),
        (make_spec(59, 59, 4), (64, 64)),  # short ones are not padded to a tile
        (make_spec(10, 124, 4), (256, 128)),
        (make_spec(10, 123, 4), (128, 128)),
    ],
)
def test_lengths_are_whole_tiles_with_room_for_a_step(
    spec: BuildSpec, expected: tuple[int, int]
) -> None:
    lengths = lengths_of(spec, spec.num_draft_tokens + 1)
    assert (lengths.total, lengths.context) == expected


def test_buckets_are_powers_of_two_below_the_length() -> None:
    lengths = lengths_of(make_spec(1024, 2043, 4), 5)
    assert lengths.context_buckets == (128, 256, 512, 1024)
    assert lengths.token_buckets == (128, 256, 512, 1024, 2048)
    assert lengths_of(make_spec(128, 640), 1).token_buckets == (128, 256, 640), "512 is near 640"
    assert lengths_of(make_spec(50, 50), 1).token_buckets == (50,)


def test_without_bucketing_there_is_one_graph_of_each() -> None:
    lengths = lengths_of(make_spec(1024, 2048, bucketing=False), 1)
    assert lengths == Lengths(2048, 1024)
    assert lengths.prompt_graphs == (1024,)


def test_given_buckets_decide_the_lengths() -> None:
    spec = make_spec(
        12288, 12793, 6,
        context_encoding_buckets=[2048, 12288], token_generation_buckets=[2048, 12800],
    )  # fmt: skip
    lengths = lengths_of(spec, 7)
    assert lengths == Lengths(12800, 12288, (2048, 12288), (2048, 12800))


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 31), st.booleans())
def test_every_request_fits_whatever_the_lengths(
    prompt: int, more: int, k: int, bucketing: bool
) -> None:
    total = max(prompt + more, 2)
    spec, step = make_spec(prompt, total, k, bucketing=bucketing), k + 1
    lengths = lengths_of(spec, step)
    assert lengths.total >= total + (step if k else 0)
    assert prompt <= lengths.context <= lengths.total
    assert lengths.total <= 128 or lengths.total % 128 == 0
    for buckets, longest in (
        (lengths.context_buckets, lengths.context), (lengths.token_buckets, lengths.total),
    ):  # fmt: skip
        assert list(buckets) == sorted(set(buckets))
        assert not buckets or buckets[-1] == longest or longest == step


def test_a_step_is_the_tree_with_its_root() -> None:
    chain, alone = make_spec(8, 16, 3), make_spec(8, 16)
    assert (step_length(chain), step_length(alone)) == (4, 1)
    data = {"target": {"model": "t"}, "draft": {"method": "eagle", "model": "d",
            "tree": [[0], [1], [0, 0]], "num_draft_tokens": 2}}  # fmt: skip
    spec = BuildSpec.model_validate(data)
    assert step_length(spec) == 3, "the first two nodes"
    assert tree_of(spec).paths == ((0,), (1,))
    medusa = BuildSpec.model_validate({**data, "draft": {**data["draft"], "method": "medusa"}})
    assert step_length(medusa) == 4, "and a node at position 0"
