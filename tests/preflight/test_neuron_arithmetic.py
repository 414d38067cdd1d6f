"""What NxDI's classes leave out of config.json without a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from neuron_builds import assert_found, build_of, codes_of, config, eagle_of, findings_of

from neuron_spec.preflight.neuron import check_build

BIG = {"instance": "trn2.48xlarge", "tp_degree": 8}
LINEAR = {"type": "linear", "factor": 2.0}
BIASES = tuple(f"layers.0.self_attn.{part}_proj.bias" for part in "qkvo")


@pytest.mark.parametrize(
    ("code", "violation", "passing"),
    [
        (
            "target-rope-ignored",
            {"target": config("qwen2-7b", rope_scaling={"rope_type": "yarn", "factor": 4.0})},
            {"target": "qwen2-7b"},
        ),
        (
            "target-rope-ignored",
            {"target": config("mistral-7b", rope_scaling=LINEAR)},
            {"target": config("llama-8b", rope_scaling=LINEAR)},
        ),
        (
            "draft-rope-ignored",
            {"method": "model", "draft": config("qwen2-7b", rope_scaling=LINEAR)},
            {"method": "model", "draft": "qwen2-7b"},
        ),
        (
            "chunked-attention",
            {"target": config("llama-8b", attention_chunk_size=8192), "method": "ngram"},
            {"target": config("llama-8b", attention_chunk_size=8192)},
        ),
        (
            "target-head-dim",
            {"target": config("mistral-7b", hidden_size=5120, head_dim=128)},
            {"target": config("mistral-7b", hidden_size=4096, head_dim=128)},
        ),
        (
            "target-gemma3-fixed",
            {"target": config("gemma3-27b", vocab_size=262144), "neuron": BIG},
            {"target": "gemma3-27b", "neuron": BIG},
        ),
        (
            "target-gemma3-fixed",
            {"target": config("gemma3-27b", rope_scaling=None), "neuron": BIG},
            {"target": "gemma3-27b", "neuron": BIG},
        ),
        (
            "draft-biases",
            {"method": "eagle", "draft": eagle_of("llama-8b", attention_bias=True),
             "draft_names": BIASES[:3]},
            {"method": "eagle", "draft": eagle_of("llama-8b", attention_bias=True),
             "draft_names": BIASES},
        ),
        (
            "draft-biases",
            {"method": "eagle", "draft": eagle_of("qwen2-7b", model_type="qwen2"),
             "target": "qwen2-7b", "draft_names": BIASES[:3]},
            {"method": "eagle", "draft": eagle_of("qwen2-7b"), "target": "qwen2-7b",
             "draft_names": ("fc.weight",)},
        ),
        (
            "target-quantized",
            {"target": config("llama-8b", quantization_config={"bits": 4})},
            {"target": config("llama-8b", quantization_config={"bits": 4}),
             "neuron": {"config": {"quantized": True, "quantized_checkpoints_path": "there"}}},
        ),
    ],
)  # fmt: skip
def test_arithmetic(code: str, violation: dict[str, Any], passing: dict[str, Any]) -> None:
    assert_found(code, violation, passing)


def test_a_rotary_embedding_that_nxdi_calls_imprecise_is_a_warning() -> None:
    target = config("llama-8b", rope_scaling=LINEAR)
    (finding,) = (f for f in findings_of(target=target) if "rope" in f.code)
    assert (finding.code, finding.severity) == ("neuron-target-rope-precision", "warning")
    assert not any("rope" in code for code in codes_of(target="llama-8b"))


def test_gpt_oss_unpacks_its_own_format() -> None:
    assert "target-quantized" not in codes_of(target="gpt-oss-120b")


def test_a_draft_without_a_class_of_its_own_is_not_measured() -> None:
    """Medusa heads are part of the target, an n-gram is no model."""
    assert not any(code.startswith("draft-") for code in codes_of(method="ngram"))


def test_only_models_that_nxdi_runs_are_looked_at() -> None:
    """A model beside Medusa is none of NxDI's; one that is not known is not guessed."""
    other = config("qwen2-7b", rope_scaling=LINEAR)
    beside = replace(build_of(method="medusa", target="vicuna-7b"), draft=other, draft_type="qwen2")
    assert not [f for f in check_build(beside) if f.severity == "error"]
    for method in ("eagle", "model"):
        unknown = replace(build_of(method=method), draft=None, draft_type=None)
        assert not [f for f in check_build(unknown) if f.severity == "error"]


def test_biases_are_asked_of_eagle_heads_only() -> None:
    biased = config("llama-1b", attention_bias=True)
    found = codes_of(method="model", draft=biased, draft_names=BIASES[:3])
    assert "draft-biases" not in found
    nothing = replace(build_of(method="eagle"), draft=None, draft_names=frozenset(BIASES[:3]))
    assert "neuron-draft-biases" not in {f.code for f in check_build(nothing)}
    partly = eagle_of("llama-8b", attention_bias=False)
    assert "draft-biases" in codes_of(method="eagle", draft=partly, draft_names=BIASES)
