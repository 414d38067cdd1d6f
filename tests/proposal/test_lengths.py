"""Lengths: a request and a step behind it always fit, whatever the models were trained for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuron_builds import config

from neuron_spec.errors import UserError
from neuron_spec.proposal.lengths import lengths
from neuron_spec.proposal.models import Models
from neuron_spec.proposal.values import Value, plain


def models(target: int, draft: int = 0, method: str = "eagle", **changes: Any) -> Models:
    """Of so many positions."""

    def identity(positions: int) -> Any:
        changed = config("llama-8b", max_position_embeddings=positions, **changes)
        return SimpleNamespace(config=changed)

    return Models(identity(target), "t", identity(draft) if draft else None, None, method)


@pytest.mark.parametrize(
    ("target", "draft", "k", "expected", "reason"),
    [
        (131072, 0, 4, (2048, 4091), "with a step of 5 positions a cache of 4096"),
        (131072, 2048, 3, (1024, 2044), "past the draft's"),
        (2048, 4096, 4, (1024, 2043), "the target"),
        (4096, 4096, 4, (2048, 4091), "a cache of 4096"),
        (1000, 0, 4, (384, 891), "a cache of 896"),
        (100, 0, 4, (47, 95), "a cache of 100"),
        (9, 0, 31, (1, 2), "a cache of 9"),
        (4, 0, 4, (1, 2), "a cache of 4"),
    ],
)
def test_lengths(target: int, draft: int, k: int, expected: tuple[int, int], reason: str) -> None:
    _, shape = lengths(models(target, draft), Value(k))
    assert (shape["max_prompt_tokens"].value, shape["max_total_tokens"].value) == expected
    assert reason in shape["max_total_tokens"].reason


def test_too_few_positions_are_an_error() -> None:
    with pytest.raises(UserError, match=r"the target has 3 positions.*\n.*at least 4"):
        lengths(models(3), Value(4))


@given(
    target=st.integers(4, 10_000),
    draft=st.integers(0, 10_000).filter(lambda n: n == 0 or n >= 4),
    k=st.integers(1, 31),
    method=st.sampled_from(["eagle", "model", "ngram", "none"]),
)
def test_whatever_the_models(target: int, draft: int, k: int, method: str) -> None:
    given_k = Value(k)
    changed, shape = lengths(models(target, draft, method), given_k)
    values = plain(shape)
    step = changed.value + 1 if method != "none" else 0
    total, prompt = values["max_total_tokens"], values["max_prompt_tokens"]
    limit = min(target, draft or target)
    assert 1 <= changed.value <= k and (changed is given_k or changed.reason)
    assert 1 <= prompt < total and total >= 2
    assert total + max(step, 1) <= limit and total + step <= 4096
    cache = total + step
    assert cache <= 128 or -cache % 128 <= (step == 0), "a cache of whole tiles wastes nothing"
    assert cache > min(limit, 4096) - 128 - (step == 0)
