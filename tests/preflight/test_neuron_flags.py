"""Keywords of [neuron.config]: unknown, decided elsewhere, or contradicting the build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuron_builds import assert_found, codes_of, findings_of

from neuron_spec.platforms.nxdi_keywords import keywords
from neuron_spec.preflight.neuron.flags import RULES

GOLDEN = Path(__file__).parents[1] / "golden"
TKG = "attn_block_tkg_nki_kernel_enabled"
BLOCKS = {"is_block_kv_layout": True, "pa_num_blocks": 64, "pa_block_size": 32}
PREFIX = {"is_prefix_caching": True, **BLOCKS}
TWO = {"shape": {"batch_size": 2}}
TREE = {"draft_fields": {"tree": [[0], [1]]}}
MODEL, EAGLE, EAGLE3 = ({"method": method} for method in ("model", "eagle", "eagle3"))
MEDUSA = {"method": "medusa", "target": "vicuna-7b"}
QUANTIZED = {"quantized": True, "quantized_checkpoints_path": "there"}
NOT_CONVERTED = {"modules_to_not_convert": ["lm_head"]}
MIXED = {"attention_dtype": "float32"}
VICUNA = {"target": "vicuna-7b"}
CORES = {"neuron": {"instance": "trn2.48xlarge", "tp_degree": 32}}  # as many as it has KV heads


def on(fields: dict[str, Any] | None = None, /, **settings: Any) -> dict[str, Any]:
    """A build with keywords of NeuronConfig."""
    fields = fields or {}
    return {**fields, "neuron": {**fields.get("neuron", {}), "config": settings}}


CASES = [
    ("medusa-async", on(MEDUSA, async_mode=True), on(EAGLE, async_mode=True)),
    ("medusa-transposed", on(MEDUSA, k_cache_transposed=True), on(EAGLE, k_cache_transposed=True)),
    ("eagle3-prefix", on(EAGLE3, **PREFIX), on(EAGLE, **PREFIX)),
    ("tree-prefix", on({**EAGLE, **TREE}, **PREFIX), on(EAGLE, **PREFIX)),
    ("batch-bucketing", on({**EAGLE, **TWO}, token_generation_batches=[1]),
     on(TWO, token_generation_batches=[1])),
    ("batch-bucketing", on(TWO, token_generation_batches=[1], **BLOCKS), on(TWO, **BLOCKS)),
    ("batch-bucket-size", on(TWO, token_generation_batches=[4]),
     on(TWO, token_generation_batches=[2])),
    ("batch-bucket-size", on(token_generation_batches=2), on(token_generation_batches=1)),
    ("input-truncation", on(allow_input_truncation=True), on(allow_input_truncation=False)),
    ("dtypes", on(**MIXED), on(**MIXED, cast_type="as-declared")),
    ("dtypes", on(**MIXED), {**on(**MIXED), "dtype": "float32"}),
    ("cast-type", on(cast_type="declared"), on(cast_type="config")),
    ("quantized-path", on(quantized=True), on(**QUANTIZED)),
    ("quantized-modules", on(**QUANTIZED, qkv_kernel_enabled=True),
     on(**QUANTIZED, **NOT_CONVERTED, qkv_kernel_enabled=True)),
    ("quantized-modules", on(quantized_mlp_kernel_enabled=True, qkv_nki_kernel_enabled=True),
     on(quantized_mlp_kernel_enabled=True)),
    ("quantized-draft", on(MODEL, **QUANTIZED),
     on(MODEL, **QUANTIZED, draft_model_modules_to_not_convert=["lm_head"])),
    ("quantized-draft", on(MODEL, **QUANTIZED),
     on({**MODEL, "neuron": {"draft_config": {"quantized": False}}}, **QUANTIZED)),
    ("quantized-draft", on(EAGLE, **QUANTIZED), on({"method": "ngram"}, **QUANTIZED)),
    ("chunked-prefill", on(chunked_prefill_config={"max_num_seqs": 2}), on()),
    ("tkg-kernel-qkv", on(**{TKG: True}), on(**{TKG: True}, qkv_nki_kernel_enabled=True)),
    ("tkg-kernel-parts", on(attn_block_tkg_nki_kernel_cache_update=True),
     on(attn_block_tkg_nki_kernel_cache_update=True, qkv_kernel_enabled=True, **{TKG: True})),
    ("tkg-kernel-flash", on(**{TKG: True}, qkv_kernel_enabled=True, flash_decoding_enabled=True),
     on(flash_decoding_enabled=True)),
    ("transposed-cache", on(k_cache_transposed=True, flash_decoding_enabled=True),
     on(k_cache_transposed=True)),
    ("transposed-cache", on(k_cache_transposed=True, **BLOCKS), on(**BLOCKS)),
    ("attention-dp-batching", on(attention_dp_degree=2), on(TWO, attention_dp_degree=2)),
    ("async-sampling", on(async_mode=True), on(EAGLE, async_mode=True)),
    ("async-sampling", on({"method": "ngram"}, async_mode=True),
     on({"neuron": {"sample_on_device": True}}, async_mode=True)),
    ("async-prefix", on(MODEL, async_mode=True, **PREFIX), on(EAGLE, async_mode=True, **PREFIX)),
    ("prefix-layout", on(is_prefix_caching=True), on(**PREFIX)),
    ("context-parallel-heads", on(cp_degree=2), on({"target": "qwen2-7b"}, cp_degree=2)),
    ("context-parallel-heads", on({**VICUNA, "neuron": {"tp_degree": 4}}, cp_degree=2),
     on({**VICUNA, **CORES}, cp_degree=2)),
    ("context-parallel-heads", on(cp_degree=2),
     on({"target": None, "neuron": {"tp_degree": 4}}, cp_degree=2)),
    ("context-parallel", on(cp_degree=3), on(cp_degree=1)),
    ("context-parallel", on(cp_degree=0), on({**VICUNA, **CORES}, cp_degree=4)),
    ("attention-dp", on({"shape": {"batch_size": 3}}, attention_dp_degree=2),
     on({"shape": {"batch_size": 4}}, attention_dp_degree=2)),
    ("attention-dp", on({"shape": {"batch_size": 3}}, attention_dp_degree=3), on()),
    ("mlp-context-parallel", on(mlp_cp_degree=2),
     on(mlp_cp_degree=2, sequence_parallel_enabled=True)),
    ("quantized-activations", on(activation_quantization_type="dynamic", mlp_kernel_enabled=True),
     on(activation_quantization_type="dynamic")),
    ("full-shuffle", on(is_full_model_shuffled=True),
     on(is_full_model_shuffled=True, is_mxfp4_compute=True)),
    ("output-logits", on(MODEL, output_logits=True), on(EAGLE, output_logits=True)),
    ("tensor-capture", on(tensor_capture_config={"modules_to_capture": []}),
     on(EAGLE, tensor_capture_config={"modules_to_capture": []})),
    ("padding-side", on(padding_side="left"), on(padding_side="right")),
    ("keyword", on(fused_qvk=True), on(fused_qkv=True)),
    ("keyword", on(trace_tokengen_model=False), on()),
    ("keyword", on(cp_degree="2"), on()),
    ("keyword", {"method": "eagle", "neuron": {"sampling": {"global_top_k": 64}}},
     {"method": "eagle", "neuron": {"sampling": {"global_topk": 64}}}),
    ("keyword", {"method": "model", "neuron": {"draft_config": {"fused_qvk": True}}},
     {"method": "model", "neuron": {"draft_config": {"fused_qkv": True}}}),
    ("keyword", on(capacity_factor=2.0), on({"target": "qwen3-30b-a3b"}, capacity_factor=2.0)),
    ("keyword", on(capacity_factor=2.0), on({"target": None}, capacity_factor=2.0)),
    ("keyword-decided", on(seq_len=4096), on()),
    ("keyword-decided", on(speculation_length=5), on()),
    ("keyword-decided", {"method": "model", "neuron": {"draft_config": {"tp_degree": 2}}}, MODEL),
    ("keyword-decided", {"method": "eagle", "neuron": {"sampling": {"do_sample": True}}}, EAGLE),
]  # fmt: skip


@pytest.mark.parametrize(("code", "violation", "passing"), CASES)
def test_flags(code: str, violation: dict[str, Any], passing: dict[str, Any]) -> None:
    assert_found(code, violation, passing)


@pytest.mark.parametrize(
    ("code", "severity", "violation", "passing"),
    [
        ("kernels-short-bucket", "warning",
         on({"neuron": {"context_encoding_buckets": [1024]}}, qkv_kernel_enabled=True),
         on({"neuron": {"context_encoding_buckets": [1025]}}, qkv_kernel_enabled=True)),
        ("async-tail", "info", on(EAGLE, async_mode=True),
         on({"neuron": {"sample_on_device": True}}, async_mode=True)),
        ("quantized-draft-kernel", "info", on(MODEL, quantized_mlp_kernel_enabled=True),
         on({"method": "ngram"}, quantized_mlp_kernel_enabled=True)),
    ],
)  # fmt: skip
def test_flags_that_only_cost(
    code: str, severity: str, violation: dict[str, Any], passing: dict[str, Any]
) -> None:
    assert_found(code, violation, passing, severity)


def test_every_rule_has_its_violation() -> None:
    tried = {code for code, _, _ in CASES}
    tried |= {"kernels-short-bucket", "async-tail", "quantized-draft-kernel"}
    assert {rule.code for rule in RULES} <= tried
    assert len({rule.code for rule in RULES}) == len(RULES)


def test_a_keyword_of_another_type_is_told_and_not_compared() -> None:
    """A text where a number stands would stop the comparison of numbers."""
    found = codes_of(**on(cp_degree="two", attention_dp_degree=[2]))
    assert "keyword" in found and not found & {"context-parallel", "attention-dp"}


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(["config", "draft_config", "sampling"]),
    st.sampled_from([*keywords("neuron_config", "2.29"),
                     *keywords("on_device_sampling_config", "2.29"), "nonsense"]),
    st.one_of(st.none(), st.booleans(), st.integers(-2, 300), st.floats(allow_nan=True),
              st.text(max_size=3), st.lists(st.integers(-1, 4), max_size=3),
              st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)),
    st.sampled_from([{}, EAGLE, MODEL, MEDUSA, {"method": "ngram"}]),
)  # fmt: skip
def test_whatever_is_passed_through_is_checked(
    table: str, name: str, value: Any, fields: dict[str, Any]
) -> None:
    """A text where a number stands is a finding, and no crash of the others."""
    findings_of(**fields, neuron={table: {name: value}})


def test_the_nearest_keyword_is_told() -> None:
    (finding,) = (f for f in findings_of(**on(fused_qvk=True)) if f.code == "neuron-keyword")
    assert "fused_qkv" in finding.message and finding.message.startswith("neuron.config: ")


# What NeuronConfig and the applications raised when it was recorded, and the finding that comes
# before it. Not in here: what `to_cpu` refuses, and settings that the spec decides.
RECORDED = {
    "is_medusa=True, async_mode=True": ("medusa-async", on(MEDUSA, async_mode=True)),
    "token_generation_batches=[1], speculation_length=5":
        ("batch-bucketing", on({"method": "ngram"}, token_generation_batches=[1])),
    "token_generation_batches=[1], is_medusa=True":
        ("batch-bucketing", on(MEDUSA, token_generation_batches=[1])),
    "token_generation_batches=[1], enable_fused_speculation=True":
        ("batch-bucketing", on(MODEL, token_generation_batches=[1])),
    "token_generation_batches=[1], enable_eagle_speculation=True":
        ("batch-bucketing", on(EAGLE, token_generation_batches=[1])),
    "token_generation_batches=[2], batch_size=1":
        ("batch-bucket-size", on(token_generation_batches=[2])),
    "max_context_length=256, seq_len=128":
        ("context-buckets-long", {"neuron": {"context_encoding_buckets": [4096],
                                             "token_generation_buckets": [2048]}}),
    "context_encoding_buckets=[256], seq_len=128":
        ("keyword-decided", on(context_encoding_buckets=[256])),
    "token_generation_buckets=[256], seq_len=128":
        ("keyword-decided", on(token_generation_buckets=[256])),
    "cast_type='foo'": ("cast-type", on(cast_type="foo")),
    "torch_dtype='int8'": ("keyword-decided", on(torch_dtype="int8")),
    "attention_dtype='float32', default torch_dtype, cast_type config": ("dtypes", on(**MIXED)),
    "tp_degree=3, cp_degree=2": ("context-parallel", on({"neuron": {"tp_degree": 1}}, cp_degree=2)),
    "quantized=True without path": ("quantized-path", on(quantized=True)),
    "tensor_capture_config without on_device_sampling_config":
        ("tensor-capture", on(tensor_capture_config={"modules_to_capture": []})),
    "flash_decoding_enabled + k_cache_transposed":
        ("transposed-cache", on(k_cache_transposed=True, flash_decoding_enabled=True)),
    "is_full_model_shuffled=True alone": ("full-shuffle", on(is_full_model_shuffled=True)),
    "mlp_cp_degree=2 without sequence parallel": ("mlp-context-parallel", on(mlp_cp_degree=2)),
    "chunked_prefill_config={} without block layout":
        ("chunked-prefill", on(chunked_prefill_config={})),
    "model build: eagle3 with token_tree_config": ("method", {**EAGLE3, **TREE}),
    "model build: eagle3 with is_prefix_caching": ("eagle3-prefix", on(EAGLE3, **PREFIX)),
}  # fmt: skip
NOT_IN_A_SPEC = (  # the configuration of a build always has these parts
    "application: fused speculation, no fused_spec_config",
    "model build: fused speculation without on_device_sampling_config",
    "LlamaInferenceConfig without load_config (missing attributes)",
)


def recorded_refusals() -> list[str]:
    combinations = json.loads((GOLDEN / "nxdi_combinations.json").read_text())
    return [c["case"] for c in combinations if not c["case"].startswith("to_cpu")]


def test_every_refusal_that_was_recorded_has_its_finding() -> None:
    assert set(recorded_refusals()) == {*RECORDED, *NOT_IN_A_SPEC}


@pytest.mark.parametrize(("code", "fields"), RECORDED.values(), ids=list(RECORDED))
def test_recorded_refusals_are_found_first(code: str, fields: dict[str, Any]) -> None:
    assert code in codes_of(**fields)
