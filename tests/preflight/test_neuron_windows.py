"""Sliding windows: who applies them, and what drafting does to their caches."""

from __future__ import annotations

from typing import Any

import pytest
from neuron_builds import assert_found, build_of, codes_of, config, eagle_of, errors_of, findings_of

from neuron_spec.platforms.nxdi_models import family_of

TRN1 = {"instance": "trn1.32xlarge", "sdk": "2.28", "tp_degree": 32}
BIG = {"instance": "trn2.48xlarge", "tp_degree": 8}
KERNELS = {
    "attn_block_tkg_nki_kernel_enabled": True,
    "attn_block_tkg_nki_kernel_cascaded_attention": True,
    "qkv_kernel_enabled": True,
}
WINDOW = {"sliding_window": 4096, "use_sliding_window": True}
MISTRAL = config("mistral-7b", sliding_window=4096)
WHOLE = config("mistral-7b", sliding_window=None)
UNFUSED = {"target": MISTRAL, "method": "model", "neuron": {"fused": False}}
LONG = {"max_prompt_tokens": 1024, "max_total_tokens": 4091}  # 4096 with a step of 5
SHORT = {**LONG, "max_total_tokens": 4090}


@pytest.mark.parametrize(
    ("code", "violation", "passing"),
    [
        (
            "target-window-ignored",
            {"target": config("qwen3-32b", **WINDOW), "neuron": BIG},
            {"target": config("qwen3-32b", sliding_window=4096), "neuron": BIG},
        ),
        (
            "target-window-applied",
            {"target": config("llama-8b", sliding_window=4096)},
            {"target": config("llama-8b", sliding_window=None)},
        ),
        (
            "window-kernel",
            {"target": "gpt-oss-120b", "method": "eagle", "draft": eagle_of("llama-8b"),
             "neuron": {**BIG, "tp_degree": 16, "config": {"qkv_kernel_enabled": True}}},
            {"target": "gpt-oss-120b", "method": "eagle", "draft": eagle_of("llama-8b"),
             "neuron": {**BIG, "tp_degree": 16, "config": KERNELS}},
        ),
        ("window-cache", {"target": MISTRAL, "method": "model"}, UNFUSED),
        (
            "window-cache",
            {"target": MISTRAL, "method": "eagle", "draft": eagle_of("mistral-7b"),
             "neuron": {"config": KERNELS}},
            {"target": WHOLE, "method": "eagle", "draft": eagle_of("mistral-7b")},
        ),
        (
            "window-medusa",
            {"target": MISTRAL, "method": "medusa"},
            {"target": WHOLE, "method": "medusa"},
        ),
        (
            "sinks-chip",
            {"target": "gpt-oss-120b", "neuron": TRN1, "shape": {"max_prompt_tokens": 385}},
            {"target": "gpt-oss-120b", "neuron": {**TRN1, "config": {"attn_kernel_enabled": False}},
             "shape": {"max_prompt_tokens": 385}},
        ),
        (
            "sinks-chip",
            {"target": "gpt-oss-120b", "neuron": TRN1, "shape": {"max_prompt_tokens": 385}},
            {"target": "gpt-oss-120b", "neuron": TRN1, "shape": {"max_prompt_tokens": 384}},
        ),
        ("window-steps", {**UNFUSED, "shape": LONG}, {**UNFUSED, "shape": SHORT}),
        (
            "window-steps",
            {"target": "gpt-oss-120b", "method": "ngram", "neuron": {**BIG, "tp_degree": 16}},
            {"target": "gpt-oss-120b", "neuron": {**BIG, "tp_degree": 16}},
        ),
    ],
)  # fmt: skip
def test_windows(code: str, violation: dict[str, Any], passing: dict[str, Any]) -> None:
    assert_found(code, violation, passing)


def test_the_window_of_gpt_oss_says_what_is_missing() -> None:
    fields = {"target": "gpt-oss-120b", "method": "eagle", "draft": eagle_of("llama-8b")}
    partial = {"config": {name: KERNELS[name] for name in list(KERNELS)[::2]}}
    (finding,) = (f for f in findings_of(**fields, neuron=partial) if "window" in f.code)
    assert "cascaded_attention" in finding.message
    assert "attn_block_tkg_nki_kernel_enabled" not in finding.message


def test_what_no_length_mends_is_not_told_to_be_shortened() -> None:
    fields = {"target": "gpt-oss-120b", "neuron": {**BIG, "tp_degree": 16}}
    for k, remedy in ((4, "lower shape.max_total_tokens to at most 122"), (31, "at most 95")):
        found = findings_of(**fields, method="ngram", draft_fields={"num_draft_tokens": k})
        (finding,) = (f for f in found if f.code == "neuron-window-steps")
        assert remedy in finding.remedy
    tiny = config("gpt-oss-120b", sliding_window=6)
    (finding,) = (
        f
        for f in findings_of(target=tiny, method="ngram", neuron=fields["neuron"])
        if f.code == "neuron-window-steps"
    )
    assert finding.remedy == 'use draft.method "none"'


def test_a_drafts_window_costs_acceptance_only() -> None:
    fields: dict[str, Any] = {"method": "model", "target": WHOLE, "draft": MISTRAL}
    found = {f.code: f.severity for f in findings_of(**fields, shape=LONG)}
    assert found["neuron-draft-window"] == "warning"
    assert errors_of(**fields, shape=LONG) == set()
    assert "draft-window" not in codes_of(**fields, shape=SHORT)


def test_windows_run_on_trn1() -> None:
    """NxDI 0.8 has a prompt kernel of its own for them there (SLIDING_WINDOW_KERNEL)."""
    assert errors_of(target=MISTRAL, neuron={**TRN1, "tp_degree": 8}) == set()


def test_the_llama_class_applies_the_window_in_both_releases() -> None:
    """NxDI 0.8 and 0.9, modeling_llama.py: NeuronLlamaAttention and NeuronLlamaModel read it."""
    llama = family_of("llama")
    assert llama is not None and llama.reads_window
    build = build_of(target=MISTRAL, neuron={"sdk": "2.28"})
    assert build.family == llama
    assert "target-window-ignored" not in codes_of(target=MISTRAL, neuron={"sdk": "2.28"})
