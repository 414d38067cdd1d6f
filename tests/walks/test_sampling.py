"""Sampled output: the target's distribution with every draft, and the same tokens for a seed."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import COMBINATIONS, Asked, decode, spec_of, speculator_of, write_models
from scipy.stats import chisquare

from neuron_spec.backends.base import Decoding
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import Target
from neuron_spec.errors import RequestError
from neuron_spec.sampling import probabilities
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.spec.schema import METHODS_THAT_SAMPLE

VOCAB = 4
PROMPT = (1, 3, 2)
LENGTH = 3  # output tokens that are counted: 64 sequences
NUM_SAMPLES = 500
ERROR_RATE = 1e-4  # of every single test, were its seeds not fixed
PARAMS: dict[str, Any] = {"temperature": 0.9, "top_p": 0.97}

each_combination = pytest.mark.parametrize(("method", "shape"), COMBINATIONS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"), VOCAB)


@cache
def exact(folder: Path) -> dict[tuple[int, ...], float]:
    """The probability of every output, by the target alone."""
    placement = Placement(1, 64, torch.float32, torch.device("cpu"))
    target = Target(folder / "target", placement)

    def after(prefix: tuple[int, ...]) -> list[float]:
        hidden, _ = target.hidden(torch.tensor([[*PROMPT, *prefix]]), [0])
        row = probabilities(target.logits(hidden[0, -1]), SamplingParams(**PARAMS))
        values: list[float] = row.double().tolist()
        return values

    known = {(): 1.0}
    for length in range(LENGTH):
        for prefix in product(range(VOCAB), repeat=length):
            for token, probability in enumerate(after(prefix)):
                known[(*prefix, token)] = known[prefix] * probability
    return {output: p for output, p in known.items() if len(output) == LENGTH}


def sampled(folder: Path, method: str, shape: str, rule: dict[str, Any]) -> list[list[int]]:
    is_drawn = shape == "chain" and method in METHODS_THAT_SAMPLE and rule["rule"] == "rejection"
    extra = {"sampled": True} if is_drawn else {}
    spec = spec_of(folder, method, shape, rule=rule, batch_size=50, **extra)
    speculator = speculator_of(spec)
    outputs = []
    for start in range(0, NUM_SAMPLES, 50):
        options = [SamplingParams(**PARAMS, seed=seed) for seed in range(start, start + 50)]
        asked = [Asked(PROMPT, Decoding(each)) for each in options]
        outputs += decode(speculator, asked, LENGTH)
    return outputs


def p_value(outputs: list[list[int]], expected: dict[tuple[int, ...], float]) -> float:
    """Of a chi-square test; outputs expected fewer than five times share a bin."""
    counts = Counter(map(tuple, outputs))
    assert all(expected[output] > 0 for output in counts)
    total = len(outputs)
    often = [output for output, p in expected.items() if p * total >= 5]
    found = [counts[output] for output in often]
    wanted = [expected[output] * total for output in often]
    rest = sum(p for output, p in expected.items() if output not in often) * total
    if rest > 1:
        found.append(total - sum(found))
        wanted.append(rest)
    scale = sum(found) / sum(wanted)
    return float(chisquare(found, [value * scale for value in wanted]).pvalue)


@each_combination
def test_rejection_keeps_the_distribution(folder: Path, method: str, shape: str) -> None:
    outputs = sampled(folder, method, shape, {"rule": "rejection"})
    assert p_value(outputs, exact(folder)) > ERROR_RATE


def test_the_target_alone_passes_and_a_lenient_rule_fails(folder: Path) -> None:
    """The test has power: another distribution of this size of difference is told apart."""
    alone = sampled(folder, "", "chain", {"rule": "rejection"})
    assert p_value(alone, exact(folder)) > ERROR_RATE
    lenient = sampled(folder, "model", "chain", {"rule": "lenient", "lenience": 0.2})
    assert p_value(lenient, exact(folder)) < ERROR_RATE


@each_combination
def test_sample_match_gives_the_same_tokens_with_any_draft(
    folder: Path, method: str, shape: str
) -> None:
    rule = {"rule": "sample-match"}
    options = [SamplingParams(**PARAMS, seed=seed) for seed in (3, 44, 555)]
    asked = [Asked(PROMPT, Decoding(each)) for each in options]
    plain = speculator_of(spec_of(folder, "", "chain", rule=rule, batch_size=3))
    drafted = speculator_of(spec_of(folder, method, shape, rule=rule, batch_size=3))
    expected = decode(plain, asked, 40)
    assert decode(drafted, asked, 40) == expected
    assert decode(drafted, asked, 40, lengths=[2, 0, 3]) == expected


@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "rejection"},
        {"rule": "lenient", "lenience": 0.5},
        {"rule": "typical"},
        {"rule": "sample-match"},
    ],
    ids=lambda rule: rule["rule"],
)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(
    folder: Path, shape: str, rule: dict[str, Any]
) -> None:
    extra = (
        {"sampled": True} if shape == "chain" and rule["rule"] in ("rejection", "lenient") else {}
    )
    options = [SamplingParams(**PARAMS, seed=seed) for seed in (3, 44, 555)]
    options.append(SamplingParams())  # a greedy request beside sampled ones
    prompts = [PROMPT, (2,), (0, 1, 2, 3, 0, 1, 2), PROMPT]
    pairs = zip(prompts, options, strict=True)
    asked = [Asked(prompt, Decoding(each)) for prompt, each in pairs]
    one = speculator_of(spec_of(folder, "eagle", shape, rule=rule, **extra))
    four = speculator_of(spec_of(folder, "eagle", shape, rule=rule, batch_size=4, **extra))
    alone = [decode(one, [each], 30)[0] for each in asked]
    assert decode(four, asked, 30) == alone
    plain = speculator_of(spec_of(folder, "", "chain"))
    assert alone[3] == decode(plain, asked[3:], 30)[0]


def test_without_a_seed_outputs_differ(folder: Path) -> None:
    speculator = speculator_of(
        spec_of(folder, "eagle", "chain", rule={"rule": "rejection"}, batch_size=3)
    )
    asked = [Asked(PROMPT, Decoding(SamplingParams(temperature=1.0)))] * 3
    outputs = decode(speculator, asked, 40)
    assert len({tuple(output) for output in outputs}) == 3


def test_a_greedy_artifact_refuses_to_sample(folder: Path) -> None:
    from neuron_spec.engine.request import Request

    limits = speculator_of(spec_of(folder, "eagle", "chain")).limits
    request = Request((1, 2), sampling=SamplingParams(temperature=0.7))
    with pytest.raises(RequestError, match="verifies greedily") as caught:
        request.output_limit(limits)
    assert caught.value.field == "temperature"
