"""Prepare, compile, load, and decode the recorded models: every token and every accepted count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nxdi_golden as golden
import pytest
from neuron_smoke import CASES, MEDUSA_TREE, TREES, Artifacts, K, Open, assert_greedy, greedy

from neuron_spec.backends.base import Speculator

RUNS = range(3)  # the prompts; recorded runs three and four stop early, see test_stopping.py
NUM_NEW = 48


def start(speculator: Speculator, prompts: Sequence[list[int]]) -> list[int]:
    """First new tokens."""
    return [speculator.prefill(slot, prompt).token for slot, prompt in enumerate(prompts)]


def decode(speculator: Speculator, prompt: list[int], k: int, num_new: int = NUM_NEW) -> list[int]:
    """So many tokens of one prompt, by steps that are whole."""
    tokens = start(speculator, [prompt])
    while len(tokens) < num_new:
        tokens += speculator.step(k)[0].tokens
    return tokens[:num_new]


def recorded_steps(data: dict[str, Any]) -> list[tuple[int, ...]]:
    """What each recorded step accepted, the target's own token last."""
    return [
        tuple(token for token in step["accepted_tokens_padded"] if token >= 0)
        for step in data["steps"]
    ]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("case", ["target_alone", "target_alone_logits", "target_alone_two_cores"])
def test_the_target_alone(artifacts: Artifacts, case: str, run: int) -> None:
    expected = golden.recorded("target_alone")["runs"][run]
    speculator = artifacts.speculator(case)
    found = decode(speculator, expected["prompt"], 0, len(expected["new_tokens"]))
    assert_greedy("target", expected["prompt"], found)
    assert found == expected["new_tokens"]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("case", ["fused_draft", "eagle1", "eagle1_norm", "eagle3"])
def test_every_step_of_a_fused_draft(artifacts: Artifacts, case: str, run: int) -> None:
    expected = golden.recorded(case)["runs"][run]
    assert_steps(artifacts.speculator(case), CASES[case].target, expected, K)


@pytest.mark.parametrize("run", RUNS)
def test_every_step_on_two_cores(artifacts: Artifacts, run: int) -> None:
    expected = golden.recorded("eagle1")["runs"][run]
    assert_steps(artifacts.speculator("eagle1_two_cores"), "target", expected, K)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", TREES)
def test_every_step_of_a_token_tree(artifacts: Artifacts, name: str, run: int) -> None:
    expected = golden.recorded("eagle1_token_tree")["trees"][name]["runs"][run]
    speculator = artifacts.speculator(f"tree_{name}")
    assert_steps(speculator, "target", expected, speculator.limits.num_draft_tokens)


def assert_steps(
    speculator: Speculator, target: str, expected: dict[str, Any], num_draft_tokens: int
) -> None:
    """Tokens and accepted counts of a recorded run, step by step."""
    prompt = expected["prompt"]
    tokens = start(speculator, [prompt])
    for index, accepted in enumerate(recorded_steps(expected)):
        (result,) = speculator.step(num_draft_tokens)
        tokens += result.tokens
        assert_greedy(target, prompt, tokens)
        assert result.tokens == accepted, f"step {index}"
        assert result.num_accepted == len(accepted) - 1
        assert result.num_drafted == num_draft_tokens
    assert len(tokens) > 20


@pytest.mark.parametrize("case", ["eagle1_batch2", "fused_draft_batch2"])
def test_every_step_of_a_batch_with_unequal_prompts(artifacts: Artifacts, case: str) -> None:
    expected = golden.recorded(case)
    speculator = artifacts.speculator(case)
    tokens = [[first] for first in start(speculator, expected["prompts"])]
    for step in expected["steps"]:
        results = speculator.step(K)
        for slot, result in enumerate(results):
            accepted = [token for token in step["accepted_tokens_padded"][slot] if token >= 0]
            tokens[slot] += result.tokens
            assert_greedy("target", expected["prompts"][slot], tokens[slot])
            assert list(result.tokens) == accepted
            assert result.num_accepted == len(accepted) - 1
    assert tokens == expected["tokens_including_context_encoding_token"]


def test_requests_that_come_and_go(session: Open) -> None:
    """Three prompts on two slots: a slot is used again, and its cache holds another's entries."""
    engine = session("eagle1_batch2")
    found = engine.generate_many(golden.PROMPTS, max_new_tokens=NUM_NEW, ignore_eos=True)
    for prompt, generation in zip(golden.PROMPTS, found, strict=True):
        assert_greedy("target", prompt, list(generation.token_ids))


@pytest.mark.parametrize("run", RUNS)
def test_an_unfused_draft_accepts_what_the_fused_one_does(artifacts: Artifacts, run: int) -> None:
    """The same two models with the same k: the host verifies what the graph would have."""
    expected = golden.recorded("fused_draft")["runs"][run]
    assert_steps(artifacts.speculator("unfused_draft"), "target", expected, K)


@pytest.mark.parametrize("run", RUNS)
def test_medusa_accepts_and_stays_the_targets(artifacts: Artifacts, run: int) -> None:
    prompt = golden.PROMPTS[run]
    speculator = artifacts.speculator("medusa")
    tokens, num_accepted = start(speculator, [prompt]), 0
    while len(tokens) < NUM_NEW:
        (result,) = speculator.step(len(MEDUSA_TREE))
        tokens += result.tokens
        num_accepted += result.num_accepted
        assert result.num_accepted == len(result.tokens) - 1 <= 3
        assert_greedy("target", prompt, tokens)
    # The recorded runs accept about two a step; a tree that is never right accepts none.
    assert num_accepted >= 5


def test_speculation_can_be_left_out(session: Open) -> None:
    engine = session("eagle1")
    prompt = golden.PROMPTS[1]
    found = engine.generate(prompt, max_new_tokens=20, ignore_eos=True, speculate=False)
    assert list(found.token_ids) == greedy("target", prompt, 20)
    assert found.acceptance.num_accepted == 0
