"""With any draft, in any shape, at any load, greedy output is the target's own, token for token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from combinations import COMBINATIONS, METHODS, Asked, decode, spec_of, speculator_of, write_models
from torch import Tensor

from neuron_spec.backends.base import Decoding, Speculator, TokenLogprobs
from neuron_spec.drafters import Choose, Proposal, choose_best
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.spec.schema import DRAFT_METHODS

VOCAB = 24  # so small that random drafts are right now and then
PROMPTS = ([5, 9, 17, 20, 11], [4, 3, 12], [7, 7, 7, 7, 7, 7, 7], [10])
NUM_TOKENS = 24
each_combination = pytest.mark.parametrize(("method", "shape"), COMBINATIONS)


def test_every_method_is_combined() -> None:
    assert {METHODS[method].get("method", method) for method in METHODS} == set(DRAFT_METHODS) - {
        "none"
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"), VOCAB)


def plain(folder: Path, asked: list[Asked]) -> list[list[int]]:
    speculator = speculator_of(spec_of(folder, "", "chain"))
    return [decode(speculator, [one], NUM_TOKENS)[0] for one in asked]


@each_combination
def test_a_batch_equals_plain_decoding(folder: Path, method: str, shape: str) -> None:
    """Four rows that advance at their own pace, against each alone without speculation."""
    asked = [Asked(prompt) for prompt in PROMPTS]
    speculator = speculator_of(spec_of(folder, method, shape, batch_size=4))
    assert decode(speculator, asked, NUM_TOKENS) == plain(folder, asked)


@each_combination
def test_switching_the_draft_length_changes_nothing(folder: Path, method: str, shape: str) -> None:
    """Down to zero and up again: the drafter catches up, also after many steps without it."""
    asked = [Asked(prompt) for prompt in PROMPTS[:2]]
    speculator = speculator_of(spec_of(folder, method, shape, batch_size=2))
    lengths = [3, 0, 0, 0, 0, 0, 0, 2, 1, 0]
    assert decode(speculator, asked, NUM_TOKENS, lengths) == plain(folder, asked)
    # Slots that were used before hold nothing of it.
    assert decode(speculator, asked, NUM_TOKENS) == plain(folder, asked)


@each_combination
def test_options_see_every_row_s_own_history(folder: Path, method: str, shape: str) -> None:
    """Penalties, bias and min_tokens at every drafted position, as plain decoding applies them."""
    first = plain(folder, [Asked(PROMPTS[0])])[0]
    options = [
        SamplingParams(repetition_penalty=1.8),
        SamplingParams(presence_penalty=1.5, frequency_penalty=0.7),
        SamplingParams(logit_bias={first[0]: -100.0, 13: 3.0}),
        SamplingParams(min_tokens=9),
    ]
    ends = frozenset(first)
    asked = [Asked(PROMPTS[0], Decoding(each, stop_token_ids=ends)) for each in options]
    expected = plain(folder, asked)
    assert first not in expected  # every one of them changes the output
    speculator = speculator_of(spec_of(folder, method, shape, batch_size=4))
    assert decode(speculator, asked, NUM_TOKENS) == expected


@each_combination
def test_log_probabilities_are_the_targets(folder: Path, method: str, shape: str) -> None:
    decoding = Decoding(num_logprobs=3)
    found = _with_logprobs(speculator_of(spec_of(folder, method, shape)), decoding)
    expected = _with_logprobs(speculator_of(spec_of(folder, "", "chain")), decoding)
    assert [token for token, _ in found] == [token for token, _ in expected]
    for (token, ours), (_, theirs) in zip(found, expected, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert ours.top[0] == pytest.approx((token, ours.logprob))  # greedy: the likeliest
        assert [value for _, value in ours.top] == pytest.approx(
            [value for _, value in theirs.top], abs=1e-4
        )


def _with_logprobs(speculator: Speculator, decoding: Decoding) -> list[tuple[int, TokenLogprobs]]:
    first = speculator.prefill(0, PROMPTS[0], decoding)
    assert first.logprobs is not None
    told = [(first.token, first.logprobs)]
    while len(told) < NUM_TOKENS:
        result = speculator.step(speculator.limits.num_draft_tokens)[0]
        assert result.logprobs is not None
        told += zip(result.tokens, result.logprobs, strict=True)
    speculator.release(0)
    return told[:NUM_TOKENS]


def test_a_draft_equal_to_the_target_is_always_accepted(folder: Path) -> None:
    spec = spec_of(folder, "model", "chain", model="target")
    speculator = speculator_of(spec)
    speculator.prefill(0, PROMPTS[0])
    results = [speculator.step(3)[0] for _ in range(6)]
    assert [(r.num_drafted, r.num_accepted) for r in results] == [(3, 3)] * 6


@each_combination
def test_something_is_accepted(folder: Path, method: str, shape: str) -> None:
    """Else the tests above would prove little."""
    speculator = speculator_of(spec_of(folder, method, shape))
    num_accepted = 0
    for prompt in PROMPTS:
        num_tokens = len([speculator.prefill(0, prompt).token])
        while num_tokens < 50:
            result = speculator.step(speculator.limits.num_draft_tokens)[0]
            num_tokens += len(result.tokens)
            num_accepted += result.num_accepted
        speculator.release(0)
    assert num_accepted >= 3


class WrongDrafter:
    """Always proposes another token than the target will choose."""

    def __init__(self, answer: list[int]) -> None:
        self._answer, self._place = answer, 0

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        self._place = 1

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        self._place += len(tokens)

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        right = self._answer[self._place : self._place + num_draft_tokens]
        return Proposal(torch.tensor([[(token + 1) % VOCAB for token in right]]))

    def release(self, slot: int) -> None:
        pass


def test_a_draft_that_is_always_wrong_is_never_accepted(folder: Path) -> None:
    """It costs its drafting and a step a token, and no output."""
    expected = plain(folder, [Asked(PROMPTS[0])])[0]
    speculator = speculator_of(spec_of(folder, "eagle", "chain"))
    speculator._drafter = WrongDrafter([*expected, *[0] * 8])  # type: ignore[attr-defined]
    tokens = [speculator.prefill(0, PROMPTS[0]).token]
    while len(tokens) < 16:
        result = speculator.step(3)[0]
        assert (result.num_drafted, result.num_accepted) == (3, 0)
        tokens += result.tokens
    assert tokens == expected[:16]
