"""Where outputs end: at the first token, inside a step, at the limit, at the end of the cache."""

from __future__ import annotations

import nxdi_golden as golden
import pytest
from neuron_smoke import CASES, Open, assert_greedy, greedy

FUSED = ("fused_draft", "eagle1", "eagle1_norm", "eagle3", "tree_binary7", "medusa")
SPECULATING = (*FUSED, "unfused_draft")


@pytest.mark.parametrize("case", SPECULATING)
def test_the_first_token_ends_the_output(session: Open, case: str) -> None:
    """NxDI's own loop does not look at it (behaviour 3)."""
    prompt = golden.PROMPTS[0]
    first = greedy(CASES[case].target, prompt, 1)[0]
    found = session(case).generate(prompt, max_new_tokens=20, stop_token_ids=[first])
    assert found.token_ids == (first,)
    assert found.finish_reason == "stop"


@pytest.mark.parametrize("case", ["fused_draft", "eagle1", "eagle1_norm", "eagle3"])
def test_a_token_inside_a_step_ends_the_output(session: Open, case: str) -> None:
    expected = golden.recorded(case)["runs"][4]
    found = session(case).generate(
        expected["prompt"],
        max_new_tokens=expected["max_length"] - len(expected["prompt"]),
        stop_token_ids=[expected["eos_token_id"]],
    )
    assert list(found.token_ids) == expected["new_tokens"]
    assert found.finish_reason == "stop"


@pytest.mark.parametrize("case", ["fused_draft", "eagle1", "eagle1_norm", "eagle3"])
def test_the_limit_is_reached_and_not_passed(session: Open, case: str) -> None:
    """NxDI's own loop ends up to a step before it (behaviour 2)."""
    expected = golden.recorded(case)["runs"][3]
    num_new = expected["max_length"] - len(expected["prompt"])
    found = session(case).generate(expected["prompt"], max_new_tokens=num_new, ignore_eos=True)
    whole = expected["target_alone_sequence"][len(expected["prompt"]) :]
    assert list(found.token_ids) == whole and len(whole) == num_new
    assert found.finish_reason == "length"


@pytest.mark.parametrize("case", [*SPECULATING, "target_alone"])
def test_to_the_last_position_of_the_cache(session: Open, case: str) -> None:
    """Nearer to the end of the graph EAGLE repeats a position (behaviour 7): no step starts
    there."""
    prompt = golden.PROMPTS[1]
    found = session(case).generate(prompt, max_new_tokens=None, ignore_eos=True)
    assert len(prompt) + len(found.token_ids) == CASES[case].max_total_tokens
    assert_greedy(CASES[case].target, prompt, list(found.token_ids))


def test_the_longest_prompt(session: Open) -> None:
    """A prompt that fills its graph has no padding."""
    prompt = (golden.PROMPTS[1] * 4)[: golden.CONTEXT]
    found = session("eagle1").generate(prompt, max_new_tokens=20, ignore_eos=True)
    assert_greedy("target", prompt, list(found.token_ids))


def test_a_prompt_as_long_as_a_step(session: Open) -> None:
    """In a longer graph it is a prompt (behaviour 18)."""
    prompt = golden.PROMPTS[0]
    assert len(prompt) == CASES["eagle1"].step
    found = session("eagle1").generate(prompt, max_new_tokens=10, ignore_eos=True)
    assert_greedy("target", prompt, list(found.token_ids))
