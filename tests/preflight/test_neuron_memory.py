"""The memory estimate against the anchors that AWS documents, and term by term."""

from __future__ import annotations

from typing import Any

import pytest
from neuron_builds import build_of, codes_of, config, eagle_of, errors_of, findings_of

from neuron_spec.preflight.neuron.memory_estimate import GIB, MemoryEstimate, estimate, stored_bytes

ROOMY = {"shape": {"max_prompt_tokens": 1024, "max_total_tokens": 4096}}
TRN2 = {"instance": "trn2.48xlarge"}


def estimated(**fields: Any) -> MemoryEstimate:
    found = estimate(build_of(**fields))
    assert found is not None
    return found


def part(name: str, **fields: Any) -> float:
    parts = estimated(**fields)
    return {p.name: p.num_bytes for p in (*parts.parts, *parts.rough)}[name]


@pytest.mark.parametrize(
    ("target", "tp_degree", "documented_gb"),
    [("llama-8b", 4, 16), ("llama-70b", 16, 148)],
    ids=["8B, one request, bf16", "70B, one request, bf16, 16 cores"],
)
def test_documented_anchors(target: str, tp_degree: int, documented_gb: float) -> None:
    """NxD Inference feature guide, Tensor-parallelism: within 15 %."""
    found = estimated(target=target, neuron={**TRN2, "tp_degree": tp_degree}, **ROOMY)
    assert found.total_bytes / 1e9 == pytest.approx(documented_gb, rel=0.15)


@pytest.mark.parametrize(("tp_degree", "fits"), [(8, False), (16, True)])
def test_gpt_oss_needs_sixteen_cores(tp_degree: int, fits: bool) -> None:
    """AWS's EAGLE3 tutorial for gpt-oss-120b in bf16: not at TP 8, at TP 16."""
    neuron = {**TRN2, "tp_degree": tp_degree}
    found = codes_of(target="gpt-oss-120b", neuron=neuron)
    assert ("memory" not in found) is fits
    if not fits:
        (finding,) = (f for f in findings_of(target="gpt-oss-120b", neuron=neuron)
                      if f.code == "neuron-memory")  # fmt: skip
        assert finding.severity == "error" and "set neuron.tp_degree to 16" in finding.remedy
        assert "target layers" in finding.message and "of 24 GiB" in finding.message


LONG = {"shape": {"max_prompt_tokens": 10240, "max_total_tokens": 11776}}
PUBLISHED = [
    ({"target": "llama-70b", "method": "model", **LONG}, "trn2.48xlarge", 64),
    ({"target": "llama-405b", "method": "model", **LONG}, "trn2.48xlarge", 64),
    ({"target": "llama-8b", "method": "eagle3", "shape": {"batch_size": 2}}, "trn2.48xlarge", 8),
    ({"target": "llama-70b", "method": "eagle", "draft": eagle_of("llama-70b")}, "trn1.32xlarge",
     32),
    ({"target": "vicuna-7b", "method": "medusa"}, "trn1.32xlarge", 32),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "instance", "tp_degree"), PUBLISHED)
def test_published_pairs_fit_their_instances(
    fields: dict[str, Any], instance: str, tp_degree: int
) -> None:
    sdk = "2.28" if instance.startswith("trn1") else "2.29"
    fields = {**fields, "neuron": {"instance": instance, "tp_degree": tp_degree, "sdk": sdk}}
    assert errors_of(**fields) == set()
    assert "memory-estimate" in codes_of(**fields)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-1b", 1.236), ("llama-8b", 8.030), ("llama-70b", 70.554), ("llama-405b", 405.853),
     ("gpt-oss-120b", 116.83), ("qwen3-30b-a3b", 30.53), ("qwen3-32b", 32.76)],
)  # fmt: skip
def test_parameters_are_counted_as_published(name: str, billions: float) -> None:
    assert stored_bytes(config(name), "bfloat16") / 2e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    ("sizes", "code", "severity"),
    [
        ({"tp_degree": 1}, "memory-estimate", "info"),
        ({"tp_degree": 1, "layers": 50}, "memory-tight", "warning"),
        ({"tp_degree": 1, "layers": 60}, "memory", "error"),
    ],
)
def test_the_room_of_one_core(sizes: dict[str, int], code: str, severity: str) -> None:
    """24 GiB a logical core of Trainium2; 32 layers, embedding and head of 8B are 15 GiB."""
    target = config("llama-8b", num_hidden_layers=sizes.get("layers", 32))
    findings = findings_of(target=target, neuron={"tp_degree": sizes["tp_degree"]})
    (finding,) = (f for f in findings if f.code.startswith("neuron-memory"))
    assert (finding.code, finding.severity) == (f"neuron-{code}", severity)


def test_the_remedy_is_the_smallest_degree_that_has_room() -> None:
    """70B needs 131 GiB: 33 on each of four cores, 17 on each of eight."""
    findings = findings_of(target="llama-70b", neuron={**TRN2, "tp_degree": 2})
    (finding,) = (f for f in findings if f.code == "neuron-memory")
    assert finding.remedy.startswith("set neuron.tp_degree to 8,")


def test_without_a_larger_degree_the_remedy_is_another() -> None:
    findings = findings_of(target="llama-70b", neuron={"tp_degree": 4})
    (finding,) = (f for f in findings if f.code == "neuron-memory")
    assert finding.remedy.startswith("use a larger instance")


def test_sizes_are_told_in_fitting_units() -> None:
    """The 8B model's KV cache is 64 MiB on each of four cores, its layers are 3.25 GiB."""
    (finding,) = (f for f in findings_of() if f.code == "neuron-memory-estimate")
    assert "about 3.85 GiB of 24 GiB a logical core of trn2.3xlarge: " in finding.message
    assert "target layers 3.25 GiB" in finding.message
    assert "target KV cache 64.0 MiB" in finding.message


@pytest.mark.parametrize("field", ["num_experts", "num_local_experts", "moe_intermediate_size"])
@pytest.mark.parametrize("value", ["many", -1, 0, None, True])
def test_fields_that_are_no_sizes_are_not_counted(field: str, value: Any) -> None:
    assert stored_bytes(config("llama-8b", **{field: value}), "bfloat16") == stored_bytes(
        config("llama-8b"), "bfloat16"
    )


def test_an_unknown_model_is_not_estimated() -> None:
    assert estimate(build_of(target=None, target_type="llama")) is None
    assert not any("memory" in code for code in codes_of(target=None, target_type="llama"))


# One term after the other


def test_the_kv_cache() -> None:
    """2 x layers x KV heads a core x positions x head size x 2 bytes; positions in whole tiles."""
    assert part("target KV cache") == 2 * 32 * 2 * 2048 * 128 * 2
    assert part("target KV cache", method="ngram") == 2 * 32 * 2 * 2176 * 128 * 2
    two = part("target KV cache", shape={"batch_size": 2})
    assert two == 2 * part("target KV cache")
    padded = part("target KV cache", neuron={"config": {"kv_cache_padding_size": 1}})
    assert padded == two
    assert part("target KV cache", dtype="float32") == two
    small = part("target KV cache", neuron={"config": {"kv_cache_quant": True}})
    assert 2 * small == part("target KV cache")


def test_kv_heads_are_copied_to_every_core() -> None:
    neuron = {**TRN2, "tp_degree": 32}
    assert part("target KV cache", neuron=neuron) == 2 * 32 * 1 * 2048 * 128 * 2


def test_a_block_layout_has_its_own_size() -> None:
    blocks = {"is_block_kv_layout": True, "pa_num_blocks": 10, "pa_block_size": 32}
    found = part("target KV cache", neuron={"config": blocks})
    assert found == 2 * 32 * 2 * 320 * 128 * 2
    for incomplete in blocks:
        others = {name: value for name, value in blocks.items() if name != incomplete}
        found = part("target KV cache", neuron={"config": others})
        assert found == part("target KV cache"), incomplete


def test_layers() -> None:
    """q, k, v, o and three matrices of the MLP, shared by four cores; two norms on each."""
    attention, mlp = (2 * 32 + 2 * 8) * 128 * 4096, 3 * 4096 * 14336
    assert part("target layers") == 32 * 2 * ((attention + mlp) / 4 + 2 * 4096)


def test_experts() -> None:
    """Three matrices an expert, and its row of the router."""
    attention, experts = (2 * 32 + 2 * 4) * 128 * 2048, 128 * (3 * 2048 * 768 + 2048)
    found = part("target layers", target="qwen3-30b-a3b")
    assert found == 48 * 2 * ((attention + experts) / 4 + 2 * 2048)


def test_activations_are_those_of_the_longest_prompt_graph() -> None:
    shape = {"max_prompt_tokens": 1500}
    found = part("activations of the longest prompt graph", shape=shape)
    assert found == 1536 * (4 * 4096 + 3 * 14336 / 4) * 2


@pytest.mark.parametrize(
    ("window", "fields", "kept"),
    [
        (128, {}, 128),
        (129, {}, 256),  # 128 positions are rounded up to the next tile, not to themselves
        (128, {"method": "model"}, 256),
        (125, {"method": "model"}, 256),
        (124, {"method": "model"}, 128),
        (252, {"method": "model"}, 256),
    ],
)
def test_the_windows_of_gpt_oss(window: int, fields: dict[str, Any], kept: int) -> None:
    """Every other layer, the first too, keeps window - 1 positions, or window + step - 2 where a
    step is verified, in whole tiles."""
    target = config("gpt-oss-120b", sliding_window=window, num_hidden_layers=3)
    build = {"target": target, "neuron": {**TRN2, "tp_degree": 16}, **fields}
    length = 2176 if fields else 2048
    assert part("target KV cache", **build) == 2 * 1 * 64 * 2 * (2 * kept + length)


def test_windows_shorten_caches() -> None:
    mistral = config("mistral-7b", sliding_window=512)
    assert part("target KV cache", target=mistral) == 2 * 32 * 2 * 512 * 128 * 2


def test_a_tied_head_is_a_copy() -> None:
    """NxDI clones it (`update_state_dict_for_tied_weights`)."""
    fields = {"target": "llama-1b"}
    assert part("target LM head", **fields) == part("target embedding", **fields)
    assert part("target LM head", **fields) == 128256 * 2048 * 2 / 4


def test_a_draft_on_fewer_cores_is_there_more_often() -> None:
    whole = part("draft layers", method="model")
    halved = part("draft layers", method="model", neuron={"draft_tp_degree": 2})
    assert halved == pytest.approx(2 * whole, rel=0.01)


def test_the_parts_of_eagle() -> None:
    """`fc` is shared among the cores; the buffer of 2 k + 2 states a request is not."""
    v1 = {"method": "eagle", "draft_fields": {"num_draft_tokens": 4}}
    v3 = {**v1, "method": "eagle3"}
    assert part("draft fc", **v1) == 2 * 4096 * 4096 * 2 / 4
    assert part("draft fc", **v3) == 3 * 4096 * 4096 * 2 / 4
    assert part("EAGLE rolling buffer", **v1) == 2 * 10 * 4096 * 2
    assert part("EAGLE rolling buffer", **v3) == 3 * part("EAGLE rolling buffer", **v1)
    extra = part("draft attention, second half of its input", **v3)
    assert extra == (32 + 2 * 8) * 128 * 4096 * 2 / 4


def test_the_parts_of_medusa() -> None:
    fields = {"method": "medusa", "target": "vicuna-7b"}
    assert part("Medusa blocks", **fields) == 4 * (4096 + 1) * 4096 * 2
    assert part("Medusa projections", **fields) == 4 * 32000 * 4096 * 2 / 4
    short = {**fields, "draft_fields": {"num_draft_tokens": 2}}
    assert part("Medusa blocks", **short) == part("Medusa blocks", **fields), "all heads are loaded"


def test_logits_are_whole_where_the_host_verifies() -> None:
    host = {"method": "ngram", "draft_fields": {"num_draft_tokens": 4}}
    assert part("logits", **host) == 5 * 128256 * 4
    assert part("logits", method="eagle", draft_fields={"num_draft_tokens": 4}) == 5 * 128256


def test_quantized_layers_have_one_byte_a_value() -> None:
    quantized = {"config": {"quantized": True, "quantized_checkpoints_path": "there"}}
    found = part("target layers", neuron=quantized)
    assert found == pytest.approx(part("target layers") / 2, rel=0.01)
    assert part("target LM head", neuron=quantized) == part("target LM head")


def test_parts_are_listed_by_size() -> None:
    found = estimated(method="model")
    sizes = [p.num_bytes for p in found.largest(5)]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 5
    assert found.core_bytes > found.counted_bytes > 0
    assert found.total_bytes == found.counted_bytes * 4
    assert found.core_bytes / GIB < 24
