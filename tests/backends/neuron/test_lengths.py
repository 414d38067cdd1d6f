"""Lengths as keywords of NxDI; buckets that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_spec.backends.neuron.config import render
from neuron_spec.backends.neuron.facts import CheckpointFacts, TargetFacts
from neuron_spec.backends.neuron.lengths import length_settings
from neuron_spec.errors import SpecError
from neuron_spec.spec import BuildSpec
from neuron_spec.spec.graphs import Lengths

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


def test_a_prompt_graph_as_wide_as_a_step_is_left_out() -> None:
    tree = [[rank] for rank in range(10)]
    tree += [[rank, child] for rank in range(10) for child in range(10)]
    tree += [[0, 0, child] for child in range(10)] + [[0, 1, child] for child in range(6)]
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


def test_lengths_become_keywords() -> None:
    def values(lengths: Lengths) -> dict[str, Any]:
        return {name: setting.value for name, setting in length_settings(lengths).items()}

    one = {"seq_len": 2048, "max_context_length": 1024, "enable_bucketing": False}
    assert values(Lengths(2048, 1024)) == one
    assert values(Lengths(2048, 1024, (512, 1024), (2048,))) == {
        **one, "enable_bucketing": True,
        "context_encoding_buckets": [512, 1024], "token_generation_buckets": [2048],
    }  # fmt: skip
