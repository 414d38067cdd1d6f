"""The arithmetic alone, and that the rule on a fine grid of numbers does just that."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuron_spec.rules import CHAIN_RULES, Uniforms
from neuron_spec.rules.acceptance import (
    acceptance_probability,
    as_drawn,
    at_tokens,
    probability_as_drawn,
    residual,
    widened,
    without,
)

weights = st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4).filter(any)


def normed(values: list[float]) -> Tensor:
    probs = torch.tensor(values, dtype=torch.float64)
    return probs / probs.sum()


@pytest.mark.parametrize(
    ("target", "draft", "lenience", "expected"),
    [
        (0.2, 0.4, 1.0, 0.5),
        (0.4, 0.2, 1.0, 1.0),
        (0.3, 0.3, 1.0, 1.0),
        (0.2, 0.4, 0.8, 0.625),
        (0.2, 0.4, 0.5, 1.0),
        (0.0, 0.4, 0.1, 0.0),
        (0.0, 0.0, 1.0, 0.0),
        (0.1, 0.0, 1.0, 1.0),
        (1e-38, 1e-45, 1.0, 1.0),
        (1e-45, 1.0, 1.0, 0.0),
    ],
)
def test_acceptance_probability(
    target: float, draft: float, lenience: float, expected: float
) -> None:
    found = acceptance_probability(torch.tensor(target), torch.tensor(draft), lenience=lenience)
    assert float(found) == pytest.approx(expected, abs=1e-6)


@settings(deadline=None, max_examples=50)
@given(weights, weights)
def test_the_residual_is_what_acceptance_leaves_over(
    first: list[float], second: list[float]
) -> None:
    """Appendix A.1 of arXiv:2211.17192: accepted mass and residual make the target."""
    target, draft = normed(first), normed(second)
    accepted = draft * acceptance_probability(target, draft)
    rest = residual(target, draft)
    assert float(rest.sum()) == pytest.approx(1)
    whole = accepted + (1 - accepted.sum()) * rest
    torch.testing.assert_close(whole, target, rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(weights)
def test_equal_distributions_leave_the_target(values: list[float]) -> None:
    target = normed(values).float()
    assert residual(target, target).equal(target)
    assert acceptance_probability(target, target)[target > 0].eq(1).all()


def test_a_one_hot_draft_leaves_the_target_without_its_token() -> None:
    rest = residual(torch.tensor([0.5, 0.3, 0.2]), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(rest, torch.tensor([0.0, 0.6, 0.4]))


def test_as_drawn_keeps_what_is_possible_and_replaces_what_is_not() -> None:
    stated = torch.tensor([[0.0, 0.25, 0.75], [0.0, 0.25, 0.75]])
    found = as_drawn(torch.tensor([1, 0]), stated, 3)
    assert found.tolist() == [[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]]
    assert as_drawn(torch.tensor([2]), None, 3).tolist() == [[0.0, 0.0, 1.0]]


@settings(deadline=None, max_examples=30)
@given(weights, st.integers(-1, 3), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_probability_as_drawn_is_read_off_as_drawn(
    values: list[float], token: int, dtype: torch.dtype
) -> None:
    tokens, probs = torch.tensor([token]), normed(values).to(dtype)[None]
    whole = at_tokens(as_drawn(tokens, probs, 4), tokens)
    assert probability_as_drawn(tokens, probs).equal(whole)
    assert probability_as_drawn(tokens, None).tolist() == [1.0]


def test_without_takes_out_and_renormalises() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    drawn = torch.tensor([[True, False, False], [False, True, False]])
    torch.testing.assert_close(
        without(probs, drawn), torch.tensor([[0.0, 0.6, 0.4], [0.0, 0.0, 0.0]])
    )


def test_widened() -> None:
    for half in (torch.bfloat16, torch.float16):
        assert widened(torch.zeros(1, dtype=half)).dtype == torch.float32
    assert widened(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


FINE = 2000  # cells of a number; a frequency counted on them is right to 2 cells


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("lenience", [1.0, 0.6])
def test_the_rule_on_a_fine_grid_is_this_arithmetic(deterministic: bool, lenience: float) -> None:
    generator = torch.Generator().manual_seed(3)
    cells = (torch.arange(FINE) + 0.5) / FINE
    for _ in range(5):
        target, draft = torch.randn(2, 4, generator=generator).softmax(dim=-1)
        for token in range(4):
            drafted = torch.full((FINE, 1), token)
            told = None if deterministic else draft.expand(FINE, 1, 4)
            stated = as_drawn(torch.tensor(token), None if deterministic else draft, 4)
            probability = acceptance_probability(target[token], stated[token], lenience=lenience)
            rows = target.expand(FINE, 2, 4)

            def judge(accept: Tensor, told=told, drafted=drafted, rows=rows):  # type: ignore[no-untyped-def]
                numbers = Uniforms(accept[:, None], cells[:, None].expand(-1, 2))
                rule = CHAIN_RULES["lenient"]
                return rule(drafted, told, rows, numbers, lenience=lenience)

            accepted = judge(cells).num_accepted.bool()
            assert accepted.equal(cells < probability)
            if float(probability) < 1:
                drawn = judge(torch.full((FINE,), 1 - 2.0**-24)).next_tokens
                law = torch.bincount(drawn, minlength=4) / FINE
                torch.testing.assert_close(law, residual(target, stated), rtol=0, atol=2 / FINE)
