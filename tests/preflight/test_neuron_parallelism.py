"""TP degrees against instances, heads and vocabularies."""

from __future__ import annotations

from typing import Any

import pytest
from neuron_builds import assert_found, codes_of, config, findings_of

TRN1 = {"instance": "trn1.32xlarge", "sdk": "2.28"}
BIG = {"instance": "trn2.48xlarge"}
TREE = {"method": "eagle", "draft_fields": {"tree": [[0], [1]]}}
ODD = {"vocab_size": 128258}  # even, and no multiple of 4


def eagle3(*buckets: int, tp_degree: int = 4, **settings: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"tp_degree": tp_degree, "config": settings}
    if buckets:
        fields["context_encoding_buckets"] = list(buckets)
    return {"method": "eagle3", "neuron": fields}


@pytest.mark.parametrize(
    ("code", "violation", "passing"),
    [
        ("tp-cores", {"neuron": {"tp_degree": 8}}, {"neuron": {"tp_degree": 4}}),
        (
            "tp-cores",
            {"neuron": {"tp_degree": 16, "logical_nc_config": 1}},
            {"neuron": {"tp_degree": 8, "logical_nc_config": 1}},
        ),
        ("tp-unsupported", {"neuron": {"tp_degree": 3}}, {"neuron": {"tp_degree": 2}}),
        (
            "tp-unsupported",
            {"neuron": {**TRN1, "tp_degree": 4}},
            {"neuron": {**TRN1, "tp_degree": 8}},
        ),
        (
            "tp-unsupported",
            {"neuron": {"instance": "inf2.24xlarge", "sdk": "2.28", "tp_degree": 12}},
            {"neuron": {"instance": "inf2.24xlarge", "sdk": "2.28", "tp_degree": 8}},
        ),
        (
            "draft-tp",
            {"method": "model", "neuron": {"draft_tp_degree": 3}},
            {"method": "model", "neuron": {"draft_tp_degree": 2}},
        ),
        (
            "draft-tp",
            {"method": "eagle", "neuron": {"draft_tp_degree": 8}},
            {"method": "eagle", "neuron": {"draft_tp_degree": 4}},
        ),
        (
            "target-vocabulary-tp",
            {"target": config("qwen3-30b-a3b", vocab_size=151938)},
            {"target": config("qwen3-30b-a3b", vocab_size=151936)},
        ),
        (
            "target-vocabulary-tp",
            {"target": config("vicuna-7b", vocab_size=32001), "method": "medusa"},
            {"target": config("vicuna-7b", vocab_size=32000), "method": "medusa"},
        ),
        (
            "draft-vocabulary-tp",
            {"method": "model", "draft": config("qwen3-30b-a3b", vocab_size=151938)},
            {"method": "model", "draft": config("qwen3-32b", vocab_size=151938),
             "neuron": {**BIG, "tp_degree": 8}},
        ),
        ("tree-vocabulary-tp", {**TREE, "target": config("llama-8b", **ODD)}, TREE),
        (
            "tree-vocabulary-tp",
            {**TREE, "target": config("llama-8b", **ODD)},
            {"method": "eagle", "target": config("llama-8b", **ODD)},
        ),
        (
            "target-hidden-tp",
            {"target": config("gemma3-27b", hidden_size=5378), "neuron": {**BIG, "tp_degree": 8}},
            {"target": "gemma3-27b", "neuron": {**BIG, "tp_degree": 8}},
        ),
        ("sequence-parallel", eagle3(126, 1024), eagle3(128, 1024)),
        (
            "sequence-parallel",
            {"neuron": {"context_encoding_buckets": [1026],
                        "config": {"sequence_parallel_enabled": True}}},
            {"neuron": {"context_encoding_buckets": [1026]}},
        ),
        (
            "eagle3-sequence-parallel",
            eagle3(sequence_parallel_enabled=False),
            eagle3(sequence_parallel_enabled=True),
        ),
    ],
)  # fmt: skip
def test_parallelism(code: str, violation: dict[str, Any], passing: dict[str, Any]) -> None:
    assert_found(code, violation, passing)


@pytest.mark.parametrize(
    ("violation", "passing", "said"),
    [
        (
            {"target": config("llama-8b", num_attention_heads=30)},
            {},
            "30 attention heads become 32",
        ),
        (
            {"target": config("llama-8b", num_key_value_heads=6, num_attention_heads=30)},
            {},
            "6 KV heads become 32, and the KV cache 5.3 times as large",
        ),
    ],
)
def test_heads_that_do_not_divide(
    violation: dict[str, Any], passing: dict[str, Any], said: str
) -> None:
    assert_found("target-heads", violation, passing, "warning")
    (finding,) = (f for f in findings_of(**violation) if f.code == "neuron-target-heads")
    assert said in finding.message


def test_the_drafts_heads_are_looked_at_too() -> None:
    small = config("llama-1b", num_attention_heads=30, num_key_value_heads=30)
    assert_found("draft-heads", {"method": "model", "draft": small},
                 {"method": "model", "draft": "llama-1b"}, "warning")  # fmt: skip
    assert "draft-heads" in codes_of(method="model", draft=small, neuron={"draft_tp_degree": 4})
    assert "draft-heads" not in codes_of(method="model", draft=small, neuron={"draft_tp_degree": 2})


def test_a_degree_of_an_impossible_core_is_told_once() -> None:
    found = codes_of(neuron={**TRN1, "tp_degree": 8, "logical_nc_config": 2})
    assert "lnc" in found and not found & {"tp-cores", "tp-unsupported", "memory-estimate"}


def test_weights_that_do_not_fit_the_host() -> None:
    fields = {"instance": "trn1.2xlarge", "sdk": "2.28", "tp_degree": 2}
    large = config("llama-8b", num_hidden_layers=64)
    assert_found("host-memory", {"target": large, "neuron": {"instance": "inf2.xlarge",
                 "tp_degree": 2, "sdk": "2.28"}, "dtype": "bfloat16"},
                 {"target": "llama-1b", "neuron": fields}, "warning")  # fmt: skip
    stored = {**fields, "save_sharded_checkpoint": True}
    assert "host-memory" not in codes_of(target=large, neuron=stored)
