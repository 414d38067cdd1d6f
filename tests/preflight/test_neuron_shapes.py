"""Lengths, graphs of fixed length, batches."""

from __future__ import annotations

from typing import Any

import pytest
from neuron_builds import assert_found, build_of, codes_of, config, errors_of, findings_of

from neuron_spec.preflight.neuron.sharding import Heads, shard_heads

K4 = {"method": "eagle", "draft_fields": {"num_draft_tokens": 4}}


def buckets(context: list[int] = (), token: list[int] = (), **others: Any) -> dict[str, Any]:  # type: ignore[assignment]
    fields = {"context_encoding_buckets": list(context), "token_generation_buckets": list(token)}
    return {"neuron": {**{k: v for k, v in fields.items() if v}, **others}}


@pytest.mark.parametrize(
    ("code", "violation", "passing"),
    [
        ("context-buckets-short", buckets([128, 1023]), buckets([128, 1024])),
        ("context-buckets-long", buckets([4096], [2048]), buckets([2048], [2048])),
        ("token-buckets-short", {**K4, **buckets(token=[2052])}, {**K4, **buckets(token=[2053])}),
        ("token-buckets-short", buckets(token=[2047]), buckets(token=[2048])),
        ("bucket-is-step", {**K4, **buckets([5, 1024])}, {**K4, **buckets([6, 1024])}),
        (
            "bucket-is-step",
            {"method": "ngram", "draft_fields": {"num_draft_tokens": 15},
             "shape": {"max_prompt_tokens": 16, "max_total_tokens": 1000},
             **buckets([16])},
            {"method": "none", "shape": {"max_prompt_tokens": 16, "max_total_tokens": 1000},
             **buckets([16])},
        ),
        (
            "batch",
            {"method": "model", "neuron": {"fused": False}, "shape": {"batch_size": 2}},
            {"method": "model", "neuron": {"fused": False}, "shape": {"batch_size": 1}},
        ),
        (
            "batch",
            {"method": "medusa", "target": "vicuna-7b", "shape": {"batch_size": 2}},
            {"method": "medusa", "target": "vicuna-7b", "shape": {"batch_size": 1}},
        ),
        (
            "by-load",
            {"method": "eagle", "draft_fields": {"by_load": [[1, 4], [8, 0]]}},
            {"method": "ngram", "draft_fields": {"by_load": [[1, 4], [8, 0]]}},
        ),
        (
            "by-load",
            {"method": "model", "draft_fields": {"by_load": [[1, 4], [8, 0]]}},
            {"method": "model", "draft_fields": {"by_load": [[1, 4], [8, 0]]},
             "neuron": {"fused": False}},
        ),
    ],
)  # fmt: skip
def test_shapes(code: str, violation: dict[str, Any], passing: dict[str, Any]) -> None:
    assert_found(code, violation, passing)


@pytest.mark.parametrize(
    ("code", "severity", "violation", "passing"),
    [
        ("cache-untiled", "warning", {**K4, **buckets(token=[2053])},
         {**K4, **buckets(token=[2176])}),
        ("cache-untiled", "warning",
         {**K4, "neuron": {"config": {"disable_kv_cache_tiling": True}}}, K4),
        ("cache-untiled", "warning", {**K4, **buckets(token=[2053])}, buckets(token=[2053])),
        ("batch-draft-mask", "warning", {"method": "model", "shape": {"batch_size": 2}},
         {"method": "eagle", "shape": {"batch_size": 2}}),
        ("batch-adapter", "info", {"method": "eagle3", "shape": {"batch_size": 2}},
         {"method": "eagle3", "shape": {"batch_size": 1}}),
    ],
)  # fmt: skip
def test_what_only_costs(
    code: str, severity: str, violation: dict[str, Any], passing: dict[str, Any]
) -> None:
    assert_found(code, violation, passing, severity)


def test_a_short_cache_has_no_tiles_to_lose() -> None:
    shape = {"max_prompt_tokens": 16, "max_total_tokens": 64}
    assert "cache-untiled" not in codes_of(**K4, shape=shape)
    untiled = {"neuron": {"token_generation_buckets": [128],
                          "config": {"disable_kv_cache_tiling": True}}}  # fmt: skip
    assert "cache-untiled" not in codes_of(**K4, shape=shape, **untiled)


def test_batches_are_told_for_whom() -> None:
    two = {"shape": {"batch_size": 2}}
    unfused = {"method": "model", "neuron": {"fused": False}}
    for fields, said, mend in ((unfused, "unfused draft model", "neuron.fused to true"),
                               ({"method": "medusa"}, "Medusa", "use eagle")):  # fmt: skip
        (finding,) = (f for f in findings_of(**fields, **two) if f.code == "neuron-batch")
        assert said in finding.message and mend in finding.remedy


def test_automatic_buckets_avoid_the_step() -> None:
    """127 proposals make steps of 128 positions, as long as the first automatic bucket."""
    tree = {"tree": [[rank] for rank in range(127)]}
    build = build_of(method="eagle", draft_fields=tree)
    assert build.step == 128 and 128 not in build.context_buckets


@pytest.mark.parametrize(
    ("query", "key_value", "degree", "expected"),
    [
        (32, 8, 4, Heads(32, 8, False)),  # divides
        (32, 8, 32, Heads(32, 32, False)),  # one a core, four copies
        (56, 8, 32, Heads(64, 32, False)),  # the example of NxDI's own comment
        (9, 3, 2, Heads(10, 10, True)),  # neither divides the other: one a query head
        (12, 12, 8, Heads(16, 16, False)),  # as many KV heads as query heads stay so
        (32, 6, 4, Heads(32, 32, True)),
    ],
)
def test_heads_are_shared_as_nxdi_shares_them(
    query: int, key_value: int, degree: int, expected: Heads
) -> None:
    model = config("llama-8b", num_attention_heads=query, num_key_value_heads=key_value)
    assert shard_heads(model, degree) == expected


def test_bitwise_identity_is_not_promised_for_a_device() -> None:
    assert "pin-shapes" in errors_of(verification={"pin_shapes": True})
    assert "pin-shapes" not in codes_of()
