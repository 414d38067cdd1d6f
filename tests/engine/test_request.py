"""Limits of a request against limits of an artifact."""

from __future__ import annotations

import pytest

from neuron_spec.backends.base import Limits
from neuron_spec.engine.request import Request
from neuron_spec.errors import RequestError

LIMITS = Limits(batch_size=1, max_prompt_tokens=10, max_total_tokens=12, num_draft_tokens=4)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "asked", "given"),
    [(1, None, 11), (1, 5, 5), (1, 0, 0), (1, 11, 11), (1, 12, 11), (10, None, 2), (10, 100, 2)],
)
def test_output_limit(num_prompt_tokens: int, asked: int | None, given: int) -> None:
    request = Request((7,) * num_prompt_tokens, max_new_tokens=asked)
    assert request.output_limit(LIMITS) == given


def test_a_prompt_that_is_too_long_is_told_both_lengths_and_the_mend() -> None:
    with pytest.raises(RequestError) as caught:
        Request((7,) * 11).output_limit(LIMITS)
    message = str(caught.value)
    assert "11 tokens" in message
    assert "at most 10" in message
    assert "shape.max_prompt_tokens" in message
    assert caught.value.exit_code == 2


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="the prompt is empty") as caught:
        Request(()).output_limit(LIMITS)
    assert caught.value.field == "prompt"
