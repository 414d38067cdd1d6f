"""The walk on the real demo model: SmolLM2-135M-Instruct with the trained head of checkpoints/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from neuron_spec import compile_model, load, load_spec, prepare
from neuron_spec.artifacts import Artifact
from neuron_spec.bench.workload import read_workload
from neuron_spec.checkpoints import identify
from neuron_spec.engine import Session
from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.equivalence import compare_greedy
from neuron_spec.equivalence.identity import NEAR_TIE_MARGINS

ROOT = Path(__file__).parents[2]
HEAD = ROOT / "checkpoints/smollm2-135m-instruct-eagle"

# Prompt ids and first greedy tokens, by transformers 4.57.6 in float32 on the same weights; the two
# best logits are at least 0.01 apart at each of them.
PINNED: list[tuple[Prompt, list[int] | int, list[int]]] = [
    (
        "The capital of France is",
        [504, 3575, 282, 4649, 314],
        [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33],
    ),
    (
        "def fibonacci(n):\n    ",
        [1604, 3987, 46477, 24, 94, 727, 2367],
        [753, 3987, 46477, 24, 94, 727, 466, 585, 304, 1758, 216, 32],
    ),
    (
        [{"role": "user", "content": "Write a Python function that reverses a string."}],
        40,
        [3725, 5367, 198, 1604, 8535, 79, 5931, 24, 4525, 79, 1321, 727],
    ),
    (
        [{"role": "user", "content": "Name three rivers in Europe."}],
        36,
        [33, 30, 37939, 42, 378, 3995, 4626, 281, 1910, 28, 357, 8634],
    ),
]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("demo")
    spec = load_spec(ROOT / "compile/smollm2-135m-eagle.cpu.toml")
    return compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")


@pytest.fixture(scope="module")
def session(artifact: Artifact) -> Session:
    return load(artifact.directory)


@pytest.mark.parametrize("speculate", [False, True])
@pytest.mark.parametrize(("prompt", "prompt_ids", "tokens"), PINNED)
def test_pinned_tokens(
    session: Session,
    prompt: Prompt,
    prompt_ids: list[int] | int,
    tokens: list[int],
    speculate: bool,
) -> None:
    encoded = session.tokenizer.encode(prompt)
    assert (list(encoded) if isinstance(prompt_ids, list) else len(encoded)) == prompt_ids
    result = session.generate(prompt, max_new_tokens=12, speculate=speculate)
    assert list(result.token_ids) == tokens


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "countries": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        "length_km": {"type": "integer", "minimum": 1, "maximum": 9999},
    },
    "required": ["name", "countries", "length_km"],
    "additionalProperties": False,
}


def test_an_answer_under_a_schema(session: Session) -> None:
    prompt: Prompt = [{"role": "user", "content": "Describe the river Rhine as JSON."}]
    options: dict[str, Any] = {
        "max_new_tokens": 120,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "river", "schema": SCHEMA},
        },
    }
    drafted = session.generate(prompt, **options)
    assert drafted.finish_reason == "stop"
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(drafted.text))
    assert drafted.token_ids == session.generate(prompt, speculate=False, **options).token_ids
    assert drafted.acceptance.num_accepted > 0


def test_speculation_keeps_the_greedy_text_and_accepts_drafts(session: Session) -> None:
    rows = read_workload(HEAD / "evaluation-prompts.jsonl")
    prompts = [row.prompt for row in rows if row.category in ("code", "qa", "translation")][:6]
    comparisons = compare_greedy(
        session, prompts, max_new_tokens=48, near_tie_margin=NEAR_TIE_MARGINS["float32"]
    )
    assert sum(comparison.num_defects for comparison in comparisons) == 0
    counts = [c.candidate.acceptance for c in comparisons if c.candidate.acceptance]
    accepted = sum(count.num_accepted for count in counts)
    steps = sum(count.num_steps for count in counts)
    # An untrained head accepts nothing; the card tells how much this one does.
    assert accepted / steps > 0.4


def test_the_head_is_in_exactly_the_public_layout() -> None:
    identity = identify(HEAD)
    names = set(identity.files.tensors)
    assert identity.family == "eagle"
    assert not (identity.missing or identity.unexpected or identity.misshapen)
    absent = ("lm_head.weight", "norm.weight", "layers.0.input_layernorm.weight")
    assert names.isdisjoint(absent)
    assert sum(path.stat().st_size for path in identity.files.files) < 20_000_000
