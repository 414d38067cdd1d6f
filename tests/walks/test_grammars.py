"""Outputs held to a grammar: with any draft what the target gives without one."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from automata import END, Automaton, wandering
from combinations import COMBINATIONS, Asked, decode, spec_of, speculator_of, write_models
from scipy.stats import chisquare

from neuron_spec.backends.base import Decoding
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.scripted import DEFAULT_LIMITS
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import FailEvent, FinishEvent
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.errors import RequestError
from neuron_spec.sampling import probabilities
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.spec.schema import METHODS_THAT_SAMPLE

VOCAB, SMALL_VOCAB = 259, 4
PROMPT = (1, 3, 2)
LENGTH, NUM_SAMPLES = 3, 500
ERROR_RATE = 1e-4  # of every single test, were its seeds not fixed
PARAMS: dict[str, Any] = {"temperature": 0.9, "top_p": 0.97}
GRAMMARS = [wandering(VOCAB, share=share, seed=seed) for seed, share in ((1, 0.5), (2, 0.02))]
SMALL = wandering(SMALL_VOCAB, num_states=3, seed=7)
SAMPLING_RULES: list[dict[str, Any]] = [
    {"rule": "rejection"},
    {"rule": "lenient", "lenience": 0.5},
    {"rule": "typical"},
    {"rule": "sample-match"},
]

each_combination = pytest.mark.parametrize(("method", "shape"), COMBINATIONS)
# One of each kind of draft: drawn, taken as the best, looked up; a chain, a tree, a dynamic tree.
each_kind = pytest.mark.parametrize(
    ("method", "shape"),
    [("model", "chain"), ("ngram", "chain"), ("medusa", "tree"), ("eagle", "dynamic")],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"), VOCAB)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("small"), SMALL_VOCAB)


def asked(*sampling: SamplingParams) -> list[Asked]:
    """Every grammar, and free text, with its own options."""
    grammars = [*GRAMMARS, None]
    return [
        Asked(PROMPT, Decoding(options, grammar=grammar))
        for options, grammar in zip(sampling, grammars, strict=True)
    ]


@each_combination
def test_greedy_output_is_that_without_a_draft(folder: Path, method: str, shape: str) -> None:
    rows = asked(SamplingParams(), SamplingParams(repetition_penalty=1.2), SamplingParams())
    expected = decode(speculator_of(spec_of(folder, "", "chain", batch_size=3)), rows, 24)
    drafted = speculator_of(spec_of(folder, method, shape, batch_size=3))
    assert decode(drafted, rows, 24) == expected
    assert decode(drafted, rows, 24, lengths=[2, 0, 3]) == expected
    assert all(g.accepts(out) for g, out in zip(GRAMMARS, expected, strict=False))
    free = decode(drafted, [Asked(PROMPT)] * 3, 24)[0]
    assert free == expected[2]
    assert not any(g.accepts(free) for g in GRAMMARS)


@each_kind
def test_sample_match_gives_the_same_tokens_with_any_draft(
    folder: Path, method: str, shape: str
) -> None:
    rule = {"rule": "sample-match"}
    rows = asked(*(SamplingParams(**PARAMS, seed=seed) for seed in (3, 44, 555)))
    plain = speculator_of(spec_of(folder, "", "chain", rule=rule, batch_size=3))
    drafted = speculator_of(spec_of(folder, method, shape, rule=rule, batch_size=3))
    expected = decode(plain, rows, 24)
    assert decode(drafted, rows, 24) == expected
    assert all(g.accepts(out) for g, out in zip(GRAMMARS, expected, strict=False))


@pytest.mark.parametrize("rule", SAMPLING_RULES)
@pytest.mark.parametrize(("method", "shape"), [("model", "chain"), ("eagle", "tree")])
def test_no_rule_leaves_the_grammar(
    folder: Path, method: str, shape: str, rule: dict[str, Any]
) -> None:
    speculator = speculator_of(spec_of(folder, method, shape, rule=rule, batch_size=3))
    for seed in range(4):
        options = SamplingParams(temperature=2.0, seed=seed)
        outputs = decode(speculator, asked(*[options] * 3), 40)
        assert all(g.accepts(out) for g, out in zip(GRAMMARS, outputs, strict=False))


@cache
def exact(folder: Path) -> dict[tuple[int, ...], float]:
    """The probability of every output under `SMALL`, by the masked target alone."""
    target = Target(folder / "target", Placement(1, 64, torch.float32, torch.device("cpu")))

    def after(prefix: tuple[int, ...]) -> dict[int, float]:
        hidden, _ = target.hidden(torch.tensor([[*PROMPT, *prefix]]), [0])
        logits, allowed = target.logits(hidden[0, -1]), SMALL.after(prefix)
        masked = torch.full_like(logits, -torch.inf)
        masked[allowed] = logits[allowed]
        row = probabilities(masked, SamplingParams(**PARAMS)).double()
        return {token: float(row[token]) for token in allowed}

    known = {(): 1.0}
    for length in range(LENGTH):
        for prefix in product(range(SMALL_VOCAB), repeat=length):
            if prefix in known:
                for token, probability in after(prefix).items():
                    known[(*prefix, token)] = known[prefix] * probability
    return {output: p for output, p in known.items() if len(output) == LENGTH}


def p_value(outputs: list[list[int]], expected: dict[tuple[int, ...], float]) -> float:
    """Of a chi-square test; outputs expected fewer than five times share a bin."""
    counts = Counter(map(tuple, outputs))
    assert all(expected[output] > 0 for output in counts)
    total = len(outputs)
    often = [output for output, p in expected.items() if p * total >= 5]
    found = [counts[output] for output in often]
    wanted = [expected[output] * total for output in often]
    rest = total - sum(wanted)
    if rest > 1:
        found.append(total - sum(found))
        wanted.append(rest)
    scale = sum(found) / sum(wanted)
    return float(chisquare(found, [value * scale for value in wanted]).pvalue)


def sampled(folder: Path, method: str, shape: str, rule: dict[str, Any]) -> list[list[int]]:
    is_drawn = shape == "chain" and method in METHODS_THAT_SAMPLE and rule["rule"] == "rejection"
    extra = {"sampled": True} if is_drawn else {}
    spec = spec_of(folder, method, shape, rule=rule, batch_size=50, **extra)
    speculator = speculator_of(spec)
    outputs = []
    for start in range(0, NUM_SAMPLES, 50):
        options = [SamplingParams(**PARAMS, seed=seed) for seed in range(start, start + 50)]
        rows = [Asked(PROMPT, Decoding(each, grammar=SMALL)) for each in options]
        outputs += decode(speculator, rows, LENGTH)
    return outputs


@each_kind
def test_rejection_keeps_the_masked_distribution(small: Path, method: str, shape: str) -> None:
    outputs = sampled(small, method, shape, {"rule": "rejection"})
    assert p_value(outputs, exact(small)) > ERROR_RATE


def test_the_test_has_power(small: Path) -> None:
    outputs = sampled(small, "model", "chain", {"rule": "lenient", "lenience": 0.1})
    assert p_value(outputs, exact(small)) < ERROR_RATE


def accepted_of(folder: Path, grammar: Automaton | None) -> tuple[int, int]:
    """Drafted and accepted tokens of a chain."""
    speculator = speculator_of(spec_of(folder, "model", "chain"))
    speculator.prefill(0, PROMPT, Decoding(grammar=grammar))
    results = [speculator.step(3)[0] for _ in range(15)]
    return sum(r.num_drafted for r in results), sum(r.num_accepted for r in results)


def test_a_chain_drafts_what_the_grammar_allows(folder: Path) -> None:
    """One token alone is allowed at a time: a draft that knows it is always accepted."""
    forced = Automaton({state: {7 + state: (state + 1) % 5} for state in range(5)}, VOCAB)
    num_drafted, num_accepted = accepted_of(folder, forced)
    assert num_drafted == num_accepted == 45


# Ends, through the decode loop


def loop_of(folder: Path, method: str, *, batch_size: int = 2) -> DecodeLoop:
    speculator = speculator_of(spec_of(folder, method, "chain", batch_size=batch_size))
    length = DraftLength.constant(speculator.limits.num_draft_tokens)
    return DecodeLoop(speculator, lambda ids: "".join(f"{i} " for i in ids), draft_length=length)


def request(grammar: Automaton, **fields: Any) -> Request:
    return Request(PROMPT, stop_token_ids=frozenset({2}), grammar=grammar, **fields)


@pytest.mark.parametrize("method", ["", "model", "ngram"])
@pytest.mark.parametrize("length", range(1, 7))
def test_an_output_ends_where_its_grammar_does(folder: Path, method: str, length: int) -> None:
    words = Automaton(
        {**{state: {9: state + 1} for state in range(length)}, length: {2: END}}, VOCAB
    )
    loop = loop_of(folder, method)
    loop.submit(request(words))
    events = list(loop.run())
    assert [e.token_id for e in events[:-1]] == [9] * length + [2]  # type: ignore[union-attr]
    assert isinstance(events[-1], FinishEvent) and events[-1].reason == "stop"


def test_the_limit_cuts(folder: Path) -> None:
    loop = loop_of(folder, "model")
    loop.submit(request(GRAMMARS[0], max_new_tokens=6))
    *tokens, last = loop.run()
    assert len(tokens) == 6 and isinstance(last, FinishEvent) and last.reason == "length"


@pytest.mark.parametrize("method", ["", "model"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_dead_end_fails_its_own_request_alone(folder: Path, method: str, place: int) -> None:
    dead = Automaton({**{state: {9: state + 1} for state in range(place)}, place: {}}, VOCAB)
    loop = loop_of(folder, method)
    other = loop.submit(request(GRAMMARS[0], max_new_tokens=8))
    failing = loop.submit(request(dead))
    ends: dict[int, Any] = {}
    while not loop.is_idle:
        for event in loop.advance():
            ends[event.request_id] = event
    assert isinstance(ends[failing], FailEvent)
    assert isinstance(ends[failing].error, RequestError)
    assert ends[failing].error.field == "response_format"
    assert isinstance(ends[other], FinishEvent) and ends[other].reason == "length"
    loop.submit(request(GRAMMARS[0], max_new_tokens=3))  # the slot is free again
    assert len(list(loop.run())) == 4


def test_a_cancelled_output_leaves_no_trace_in_its_slot(folder: Path) -> None:
    loop = loop_of(folder, "model", batch_size=1)
    first = loop.submit(request(GRAMMARS[1], max_new_tokens=30))
    loop.advance()
    loop.advance()
    assert loop.cancel(first) is not None
    free = Request(PROMPT, max_new_tokens=20)
    loop.submit(free)
    tokens = [e.token_id for e in list(loop.run())[:-1]]  # type: ignore[union-attr]
    assert tokens == decode(speculator_of(spec_of(folder, "", "chain")), [Asked(PROMPT)], 20)[0]


def test_logprobs_are_of_the_target_without_the_mask(folder: Path) -> None:
    speculator = speculator_of(spec_of(folder, "model", "chain"))
    free = speculator.prefill(0, PROMPT, Decoding(num_logprobs=3))
    speculator.release(0)
    masked = speculator.prefill(0, PROMPT, Decoding(num_logprobs=3, grammar=GRAMMARS[1]))
    assert masked.token != free.token
    assert masked.logprobs and free.logprobs
    assert masked.logprobs.top == free.logprobs.top
    assert masked.logprobs.logprob < free.logprobs.logprob


def test_a_backend_that_cannot_refuses() -> None:
    with pytest.raises(RequestError, match="cannot hold") as caught:
        request(GRAMMARS[0]).output_limit(DEFAULT_LIMITS)
    assert caught.value.field == "response_format"


def test_min_tokens_is_refused(folder: Path) -> None:
    limits = speculator_of(spec_of(folder, "", "chain")).limits
    with pytest.raises(RequestError) as caught:
        request(GRAMMARS[0], sampling=SamplingParams(min_tokens=3)).output_limit(limits)
    assert caught.value.field == "min_tokens"
