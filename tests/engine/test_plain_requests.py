"""Requests without speculation beside others with it, and what every token tells of its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from conftest import WordTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.backends.base import Limits, StepResult
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import FinishEvent, TokenEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.engine.running import committed_by
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.spec import BuildSpec

GOLDEN = Path(__file__).parents[1] / "golden"
LENGTH = 24
LIMITS = Limits(batch_size=3, max_prompt_tokens=64, max_total_tokens=128, num_draft_tokens=4)
# Draft of the golden target -> method; a suffix tree and a drawn chain are among them.
DRAFTS = {"eagle1": "eagle", "draft": "model", "ngram": "ngram", "suffix": "suffix"}
PROMPTS = st.lists(st.lists(st.integers(3, 127), min_size=1, max_size=10), min_size=2, max_size=3)


class Scripted(ScriptedSpeculator):
    """Notes the k of every step."""

    def __init__(self, accepted: Sequence[int]) -> None:
        replies = {(number,): range(10 * number, 10 * number + 10) for number in range(1, 9)}
        super().__init__(
            {prompt: tuple(reply) for prompt, reply in replies.items()},
            accepted=accepted,
            limits=LIMITS,
        )
        self.ks: list[int] = []

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        self.ks.append(num_draft_tokens)
        return super().step(num_draft_tokens)


def run(speculator: object, requests: Sequence[Request], *, k: int = 4) -> list[list[TokenEvent]]:
    loop = DecodeLoop(
        speculator,  # type: ignore[arg-type]
        WordTokenizer().decode,
        draft_length=DraftLength.constant(k),
    )
    events: dict[int, list[TokenEvent]] = {loop.submit(request): [] for request in requests}
    for event in loop.run():
        if isinstance(event, TokenEvent):
            events[event.request_id].append(event)
        else:
            assert isinstance(event, FinishEvent)
            drafted = sum(one.num_positions > 0 for one in events[event.request_id])
            assert (event.acceptance.num_drafted > 0) == (drafted > 0)
    return list(events.values())


def test_alone_it_takes_plain_steps() -> None:
    speculator = Scripted([4])
    (tokens,) = run(speculator, [Request((1,), 5, speculate=False)])
    assert [event.origin for event in tokens] == ["plain"] * 5
    assert speculator.ks == [0] * 4


def test_beside_others_it_alone_gets_no_drafts_and_they_keep_theirs() -> None:
    speculator = Scripted([2])
    plain, other = run(speculator, [Request((1,), 4, speculate=False), Request((2,), 7)])
    assert [event.token_id for event in plain] == [10, 11, 12, 13]
    assert {event.origin for event in plain} == {"plain"}
    assert [event.origin for event in other] == [
        "plain",
        *["accepted", "accepted", "corrected"] * 2,
    ]
    assert set(speculator.ks[:2]) == {4}
    assert set(speculator.ks[2:]) == {0}  # the other has ended


def test_a_token_tells_its_step_and_how_much_was_drafted_there() -> None:
    (tokens,) = run(Scripted([2, 4, 0]), [Request((1,), 10)])
    assert [event.step for event in tokens] == [0, 1, 1, 1, 2, 2, 2, 2, 2, 3]
    assert [event.num_positions for event in tokens] == [0, *[4] * 9]


@pytest.mark.parametrize(("depth", "last"), [(2, "bonus"), (3, "corrected")])
def test_in_a_tree_a_bonus_follows_its_whole_depth(depth: int, last: str) -> None:
    result = StepResult(0, (5, 6, 7), num_drafted=6, num_accepted=2, num_positions=depth)
    told = committed_by(result)
    assert [one.origin for one in told] == ["accepted", "accepted", last]
    assert {one.num_positions for one in told} == {depth}


@cache
def reference(draft: str, rule: str, batch_size: int) -> object:
    method = DRAFTS[draft]
    has_model = method in ("eagle", "model")
    spec = BuildSpec.model_validate(
        {
            "target": {"model": "target"},
            "draft": {
                "method": method,
                "model": "draft" if has_model else None,
                "num_draft_tokens": 4,
            },
            "verification": {"rule": rule},
            "shape": {
                "max_prompt_tokens": 64,
                "max_total_tokens": 64,
                "batch_size": batch_size,
            },
            "reference": {"dtype": "float32"},
        }
    )
    return open_speculator(spec, GOLDEN / "target", GOLDEN / draft if has_model else None)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("rule", ["greedy", "rejection", "sample-match"])
@settings(max_examples=8, deadline=None)
@given(prompts=PROMPTS, seed=st.integers(0, 1000))
def test_it_gets_what_it_would_get_without_any_draft(
    draft: str, rule: str, prompts: list[list[int]], seed: int
) -> None:
    """Token for token, with seeds too: its random numbers are those of its positions."""
    sampling = SamplingParams(temperature=0.0 if rule == "greedy" else 1.0, seed=seed)
    requests = [Request(tuple(prompt), LENGTH, sampling=sampling) for prompt in prompts]
    requests[0] = replace(requests[0], speculate=False)
    together = run(reference(draft, rule, 3), requests)
    (alone,) = run(reference(draft, rule, 1), requests[:1], k=0)
    assert [event.token_id for event in together[0]] == [event.token_id for event in alone]
    assert {event.origin for event in together[0]} == {"plain"}


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_others_are_drafted_for_all_the_while(draft: str) -> None:
    repetitive = (5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6)
    requests = [Request(repetitive, LENGTH, speculate=False), Request(repetitive, LENGTH)]
    plain, other = run(reference(draft, "greedy", 3), requests)
    assert [event.token_id for event in plain] == [event.token_id for event in other]
    assert any(event.origin == "accepted" for event in other)
