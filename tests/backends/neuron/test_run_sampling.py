"""Sampling: the recorded steps on the device, the host's rules on logits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nxdi_golden as golden
import pytest
import torch
from nxdi_double.opened import K, Opened
from nxdi_double.recorder import Recorder

from neuron_spec.backends.base import Decoding, Speculator
from neuron_spec.backends.decisions import Decided, Decisions
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.drafters import ChainDrafter
from neuron_spec.engine.request import Request
from neuron_spec.errors import RequestError
from neuron_spec.sampling_params import SamplingParams

Open = Callable[..., Opened]
REJECTION = {"verification": {"rule": "rejection"}}
LIST_OF_64 = {"neuron": {"sampling": {"global_topk": 64}}}
ON_DEVICE = ("sampling", "fused_draft", "eagle1", "eagle3", "tree", "medusa")
ON_HOST = ("alone", "ngram", "suffix", "unfused")


@pytest.mark.parametrize("run", range(3))
def test_recorded_sampled_steps(run: int, open_: Open) -> None:
    """Fed the recorded uniform numbers."""
    case = golden.recorded("eagle1_sample")
    data, options = case["runs"][run], case["sampling"]
    numbers = list(data["context_encoding"]["uniform_target_then_unused_draft"])
    for step in data["steps"]:
        numbers += [step["multinomial_uniform"], step["accept_uniform"]]
    replay = golden.Replay(numbers)
    speculator = open_("eagle1", draw=replay, **REJECTION, **LIST_OF_64).speculator
    params = SamplingParams(**{name: options[name] for name in ("temperature", "top_k", "top_p")})
    first = speculator.prefill(0, data["prompt"], Decoding(params))
    assert first.token == data["context_encoding"]["out_token"]
    for expected in data["steps"]:
        (result,) = speculator.step(K)
        assert list(result.tokens) == expected["emitted"]
    replay.assert_used_up()


def textbook(rule: str, sampled: bool, batch_size: int) -> ReferenceSpeculator:
    """The reference backend's speculator with the same draft, rule and random numbers."""
    draft = golden.load_draft("draft", "model", batch_size)
    return ReferenceSpeculator(
        golden.load_target("target", "model", batch_size),
        ChainDrafter(draft.forward, draft.logits),
        Decisions(rule, {}, draws_drafts=sampled, vocab_size=128),
        limits=golden.Limits(batch_size, golden.CONTEXT, golden.SEQ_LEN, K, can_sample=True),
        device=torch.device("cpu"),
    )


def steps(speculator: Speculator, decoding: Decoding, count: int = 8) -> list[Any]:
    first = speculator.prefill(0, golden.PROMPTS[1], decoding)
    most = speculator.limits.num_draft_tokens
    results = [speculator.step(min(k, most))[0] for k in (K, 2, K, 0, K, K, 1, K)[:count]]
    speculator.release(0)
    found = [(r.tokens, r.num_drafted, r.num_accepted) for r in results]
    logprobs = [first.logprobs, *(item for r in results for item in r.logprobs or ())]
    return [first.token, found, [item.logprob for item in logprobs if item]]


@pytest.mark.parametrize(
    ("rule", "sampled"), [("rejection", False), ("rejection", True), ("sample-match", False)]
)
def test_the_host_verifies_as_the_reference_does(rule: str, sampled: bool, open_: Open) -> None:
    """Draw for draw, whatever was rejected before: the draft's cache is that of the text."""
    draft = {"draft": {"sampled": True}} if sampled else {}
    speculator = open_("unfused", verification={"rule": rule}, **draft).speculator
    reference = textbook(rule, sampled, 1)
    for seed in range(6):
        params = SamplingParams(temperature=1.0, top_p=0.9, seed=seed, presence_penalty=0.5)
        decoding = Decoding(params, num_logprobs=2)
        *found, logprobs = steps(speculator, decoding)
        *expected, expected_logprobs = steps(reference, decoding)
        assert found == expected
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-3)


def test_all_drafts_are_accepted_where_draft_and_target_are_one(
    open_: Open, nxdi: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a whole acceptance the last draft is run before the next proposal: one call more."""
    from nxdi_double import opened as builds

    twin = ("target", "target", {"method": "model"}, {"fused": False})
    monkeypatch.setitem(builds.BUILDS, "unfused", twin)
    opened = open_("unfused")
    speculator = opened.speculator
    speculator.prefill(0, golden.PROMPTS[0])
    counts = []
    for _ in range(5):
        nxdi.calls.clear()
        (result,) = speculator.step(K)
        assert result.num_accepted == K
        counts.append(
            sum(c.owner is opened.applications.draft for c in nxdi.calls if "forward" in c.name)
        )
    assert counts == [K + 1] * 5  # in the first step the prompt is the one more


def test_a_draft_that_fell_behind_encodes_the_text_in_one_call(open_: Open, nxdi: Recorder) -> None:
    opened = open_("unfused")
    speculator = opened.speculator
    speculator.prefill(0, golden.PROMPTS[0])
    num_tokens = sum(len(speculator.step(k)[0].tokens) for k in [K] + [0] * 12)
    nxdi.calls.clear()
    speculator.step(K)
    calls = [c for c in nxdi.calls if c.owner is opened.applications.draft]
    lengths = [c.arguments["input_ids"].shape[1] for c in calls]
    assert lengths == [len(golden.PROMPTS[0]) + num_tokens, *[1] * K]


@pytest.mark.parametrize("name", ON_DEVICE)
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.5},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"logit_bias": {3: 5.0}},
        {"min_tokens": 3},
    ],
)
def test_options_that_a_graph_cannot_honour(
    name: str, options: dict[str, Any], open_: Open
) -> None:
    speculator = open_(name).speculator
    (field,) = options
    request = Request((1, 2, 3), sampling=SamplingParams(**options))
    with pytest.raises(RequestError, match="no such option") as refused:
        request.output_limit(speculator.limits)
    assert refused.value.field == field
    with pytest.raises(RequestError, match="no such option"):
        speculator.prefill(0, [1, 2, 3], request.decoding)
    speculator.prefill(0, [1, 2, 3])  # and the slot is still free


@pytest.mark.parametrize(
    ("options", "field"),
    [({"seed": 1}, "seed"), ({"min_p": 0.1}, "min_p"), ({"top_k": 65}, "top_k")],
)
def test_options_of_draws_that_a_graph_cannot_honour(
    options: dict[str, Any], field: str, open_: Open
) -> None:
    limits = open_("eagle1", **REJECTION, **LIST_OF_64).speculator.limits
    request = Request((1, 2, 3), sampling=SamplingParams(temperature=1.0, **options))
    with pytest.raises(RequestError) as refused:
        request.output_limit(limits)
    assert refused.value.field == field
    greedy = Request((1, 2, 3), sampling=SamplingParams(**options))
    assert greedy.output_limit(limits) > 0  # where the best token is taken they change nothing


@pytest.mark.parametrize("name", ON_DEVICE)
def test_log_probabilities_and_temperatures_are_refused_by_field(name: str, open_: Open) -> None:
    limits = open_(name).speculator.limits
    with pytest.raises(RequestError) as refused:
        Request((1, 2), num_logprobs=1).output_limit(limits)
    assert refused.value.field == "logprobs"
    with pytest.raises(RequestError) as refused:
        Request((1, 2), sampling=SamplingParams(temperature=1.0)).output_limit(limits)
    assert refused.value.field == "temperature"


@pytest.mark.parametrize("name", ON_HOST)
def test_the_host_honours_every_option(name: str, open_: Open) -> None:
    speculator = open_(name, **REJECTION).speculator
    params = SamplingParams(
        temperature=0.7, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.2,
        presence_penalty=0.1, frequency_penalty=0.1, logit_bias={3: 1.0}, min_tokens=4, seed=1,
    )  # fmt: skip
    request = Request((1, 17, 42), sampling=params, num_logprobs=3)
    assert request.output_limit(speculator.limits) > 0
    decoding = request.decoding
    runs = [steps(speculator, decoding, 4) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    if name != "suffix":  # which drafts from what was served before, other draws then count
        assert runs[0][1] == runs[1][1]


def test_a_greedy_request_on_a_graph_that_samples(open_: Open) -> None:
    """NxDI would divide its logits by a temperature of 0."""
    speculator = open_("eagle1", **REJECTION, **LIST_OF_64).speculator
    found = [speculator.prefill(0, golden.PROMPTS[0]).token]
    for _ in range(6):
        found += speculator.step(K)[0].tokens
    assert found == golden.target_alone(tuple(golden.PROMPTS[0]), len(found))


def test_a_padding_id_that_nobody_sampled_is_dropped(open_: Open, nxdi: Recorder) -> None:
    """As NxDI emits it where the resampled token equals the rejected draft."""
    speculator = open_("eagle1", **REJECTION, **LIST_OF_64).speculator
    decoding = Decoding(SamplingParams(temperature=1.0), stop_token_ids=frozenset([2]))
    speculator.prefill(0, golden.PROMPTS[0], decoding)
    compute = nxdi.forward
    assert compute is not None

    def padded(application: Any, given: dict[str, Any]) -> Any:
        outputs = compute(application, given)
        outputs.fused_outputs[0] = torch.tensor([[57, 119, 0, -1, -1]], dtype=torch.int32)
        outputs.fused_outputs[3] = given["position_ids"] + 3
        return outputs

    nxdi.forward = padded
    (result,) = speculator.step(K)
    assert (result.tokens, result.num_accepted) == ((57, 119), 1)
    nxdi.forward, position = compute, len(golden.PROMPTS[0]) + 2
    nxdi.calls.clear()
    speculator.step(K)
    (given,) = [call.arguments for call in nxdi.calls]
    assert (int(given["input_ids"]), int(given["position_ids"])) == (119, position)


def test_a_grammar_that_comes_to_an_end_without_a_token_fails_its_request(
    open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    speculator = open_("ngram").speculator
    assert speculator.limits.has_grammars
    speculator.prefill(0, golden.PROMPTS[0])
    monkeypatch.setattr(Decisions, "judge", lambda *_: [Decided((0,), 5, is_dead_end=True)])
    (result,) = speculator.step(K)
    assert result.tokens == () and isinstance(result.failure, RequestError)


@pytest.mark.parametrize("name", ON_HOST)
def test_logits_after_whole_outputs(name: str, open_: Open) -> None:
    """Longer than the longest prompt graph; `verify` asks for them where outputs diverge."""
    builds = {"neuron": {"context_encoding_buckets": [8, 16], "token_generation_buckets": [96]}}
    changes = {**builds, "shape": {"max_prompt_tokens": 16}}
    speculator = open_(name, **changes).speculator
    prompt = golden.PROMPTS[1]
    text = [*prompt, *golden.target_alone(tuple(prompt), 40)]
    for length in (16, 17, 21, 22, 38):
        found = speculator.prefill(0, text[:length])
        assert found.token == text[length]
        expected = textbook("greedy", sampled=False, batch_size=1).prefill(0, text[:length])
        assert found.logits is not None and expected.logits is not None
        golden.assert_close(found.logits, expected.logits)
        k = speculator.limits.num_draft_tokens
        after = [token for _ in range(2) for token in speculator.step(k)[0].tokens]
        assert after == text[length + 1 :][: len(after)]
        speculator.release(0)


def test_long_prompts_wait_until_nothing_else_runs(open_: Open) -> None:
    changes = {"shape": {"batch_size": 2, "max_prompt_tokens": 16}}
    speculator = open_("ngram", **changes).speculator
    speculator.prefill(1, [1, 2, 3])
    with pytest.raises(ValueError, match=r"expected 1 … 16"):
        speculator.prefill(0, [5] * 17)
