"""Room for a whole step behind the last token, in graphs of lengths that NxDI can tile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.backends.neuron.config import render
from neuron_spec.backends.neuron.facts import CheckpointFacts, TargetFacts
from neuron_spec.backends.neuron.lengths import Lengths, lengths_of
from neuron_spec.errors import SpecError
from neuron_spec.spec import BuildSpec

LLAMA = CheckpointFacts(TargetFacts("llama", "t"))


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
    settings = {name: setting.value for name, setting in lengths.settings.items()}
    assert settings == {"seq_len": 2048, "max_context_length": 1024, "enable_bucketing": False}


def test_given_buckets_decide_the_lengths() -> None:
    spec = make_spec(
        12288, 12793, 6,
        context_encoding_buckets=[2048, 12288], token_generation_buckets=[2048, 12800],
    )  # fmt: skip
    lengths = lengths_of(spec, 7)
    assert lengths == Lengths(12800, 12288, (2048, 12288), (2048, 12800))


def test_a_prompt_graph_as_wide_as_a_step_is_left_out() -> None:
    tree = [[rank] for rank in range(10)]
    tree += [[rank, child] for rank in range(10) for child in range(10)]
    tree += [[0, 0, child] for child in range(10)] + [[0, 1, child] for child in range(7)]
    draft = {"method": "medusa", "model": "d", "tree": tree}
    spec = make_spec(1024, 2048).model_copy(
        update={"draft": BuildSpec.model_validate({"target": {"model": "t"}, "draft": draft}).draft}
    )
    arguments = render(spec, LLAMA).neuron_arguments
    assert arguments["medusa_speculation_length"] == 128
    assert arguments["context_encoding_buckets"] == [256, 512, 1024]
    short = spec.model_copy(update={"shape": make_spec(100, 2048).shape})
    with pytest.raises(SpecError, match="a prompt graph of 128 positions"):
        render(short, LLAMA)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (make_spec(1024, 2048, context_encoding_buckets=[512]), "shorter than shape.max_prompt"),
        (make_spec(64, 2048, 4, token_generation_buckets=[2052]), "need 2053"),
        (
            make_spec(64, 128, context_encoding_buckets=[512], token_generation_buckets=[256]),
            "512 is longer than the longest",
        ),
        (make_spec(64, 2048, 3, context_encoding_buckets=[4, 64]), "a prompt graph of 4 positions"),
        (
            make_spec(100, 2048, 3, "eagle3", tp_degree=8, context_encoding_buckets=[100]),
            "a prompt graph of 100 positions cannot be shared by 8 ranks",
        ),
    ],
)
def test_buckets_that_cannot_work_are_refused(spec: BuildSpec, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        render(spec, LLAMA)


def test_buckets_that_just_fit_are_not() -> None:
    spec = make_spec(64, 2048, 4, token_generation_buckets=[2053], context_encoding_buckets=[64])
    assert render(spec, LLAMA).neuron_arguments["seq_len"] == 2053


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
