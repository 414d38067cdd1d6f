"""Keywords of [neuron.config] that contradict the build, or each other.

A row says when a rule holds, what NxDI raises or would do, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuron_spec.preflight.findings import Finding, Severity
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint

Settings = Mapping[str, Any]
Condition = Callable[[NeuronBuild, Settings], Any]

_CONFIG, _BASE = "NxDI models/config.py", "NxDI models/model_base.py"
_GUIDE = "AWS Neuron documentation, NxD Inference feature guide"


@dataclass(frozen=True)
class Rule:
    """One combination that does not work.

    Attributes:
        holds: whether a build has the combination.
        message: what would happen.
    """

    code: str
    holds: Condition
    message: str
    remedy: str
    source: str
    severity: Severity = "error"


def _batches(build: NeuronBuild, settings: Settings) -> list[int]:
    given = settings.get("token_generation_batches")
    values = given if isinstance(given, list) else [given]
    return [value for value in values if type(value) is int]


def _batch_bucketing_fails(build: NeuronBuild, s: Settings) -> bool:
    others = ("chunked_prefill_config", "is_prefix_caching", "is_block_kv_layout")
    return bool(_batches(build, s)) and (build.spec.speculates or any(s.get(o) for o in others))


def _other_dtype(build: NeuronBuild, settings: Settings) -> bool:
    dtypes = [settings.get("attention_dtype"), build.neuron.draft_config.get("torch_dtype")]
    return any(dtype not in (None, settings["torch_dtype"]) for dtype in dtypes)


def _divides(numerator: Any, denominator: Any) -> bool:
    counts = all(type(value) is int for value in (numerator, denominator))
    return not counts or (denominator > 0 and numerator % denominator == 0)


def _unshared_heads(build: NeuronBuild, s: Settings) -> bool:
    heads = build.target.num_key_value_heads if build.target else 0
    return s.get("cp_degree", 1) > 1 and build.neuron.tp_degree < heads


def _mlp_only_kernel_conflict(build: NeuronBuild, s: Settings) -> bool:
    kernels = s.get("quantized_mlp_kernel_enabled") or s.get("mlp_kernel_enabled")
    return bool(s.get("activation_quantization_type") and kernels)


def _kernels(s: Settings) -> bool:
    return any(s.get(f"{part}_kernel_enabled") for part in ("qkv", "mlp", "attn"))


_TKG = "attn_block_tkg_nki_kernel_enabled"
RULES: tuple[Rule, ...] = (
    Rule(
        "medusa-async", lambda b, s: b.path == "medusa" and s.get("async_mode"),
        "async_mode with Medusa raises IncompatibleConfigError",
        "leave async_mode out", _CONFIG,
    ),
    Rule(
        "medusa-transposed", lambda b, s: b.path == "medusa" and s.get("k_cache_transposed"),
        "k_cache_transposed with Medusa fails an assertion while tracing",
        "leave k_cache_transposed out", "NxDI modules/kvcache/kv_cache_manager.py",
    ),
    Rule(
        "eagle3-prefix", lambda b, s: b.path == "eagle3" and s.get("is_prefix_caching"),
        "is_prefix_caching with EAGLE-3 fails an assertion while tracing",
        "leave is_prefix_caching out, or use eagle", f"{_BASE} NeuronFusedSpecModel",
    ),
    Rule(
        "tree-prefix", lambda b, s: b.path == "eagle-tree" and s.get("is_prefix_caching"),
        "is_prefix_caching with a token tree: that path takes none of its arguments",
        "leave is_prefix_caching out, or draft a chain",
        f"{_BASE} _eagle_tree_token_gen_forward",
    ),
    Rule(
        "batch-bucketing", _batch_bucketing_fails,
        "token_generation_batches raises ValueError with speculation, chunked prefill, prefix "
        "caching or a block KV layout",
        "leave token_generation_batches out", f"{_CONFIG} _validate_batch_bucketing_compatibility",
    ),
    Rule(
        "batch-bucket-size",
        lambda b, s: max(_batches(b, s), default=0) > b.spec.shape.batch_size,
        "token_generation_batches has a batch larger than shape.batch_size: AssertionError",
        "let the largest be shape.batch_size", _CONFIG,
    ),
    Rule(
        "input-truncation", lambda b, s: s.get("allow_input_truncation"),
        "allow_input_truncation: a prompt that is too long would be cut without a word, and steps "
        "beyond the cache would run in the largest graph",
        "leave allow_input_truncation out; too long requests are refused by name",
        "NxDI models/model_wrapper.py pad_inputs, _get_seq_bucket",
    ),
    Rule(
        "dtypes",
        lambda b, s: _other_dtype(b, s) and s.get("cast_type", "config") == "config",
        "draft or attention have another dtype than the target, and cast_type 'config' casts all "
        "weights to one: ValueError or AssertionError",
        "set cast_type to 'as-declared', or leave the other dtype out",
        "NxDI models/application_base.py validate_config, models/config.py",
    ),
    Rule(
        "cast-type",
        lambda b, s: s.get("cast_type", "config") not in ("config", "as-declared"),
        "cast_type is neither 'config' nor 'as-declared': ValueError",
        "use one of the two", _CONFIG,
    ),
    Rule(
        "quantized-path",
        lambda b, s: s.get("quantized") and not s.get("quantized_checkpoints_path"),
        "quantized without quantized_checkpoints_path: AssertionError",
        "name the directory of the quantized checkpoint", _CONFIG,
    ),
    Rule(
        "quantized-modules",
        lambda b, s: (s.get("quantized") or s.get("quantized_mlp_kernel_enabled"))
        and (s.get("qkv_kernel_enabled") or s.get("qkv_nki_kernel_enabled"))
        and not s.get("modules_to_not_convert"),
        "a quantized model with qkv kernels and without modules_to_not_convert: AssertionError",
        "list the modules that stay in the target's dtype", _CONFIG,
    ),
    Rule(
        "quantized-draft",
        lambda b, s: s.get("quantized") and b.has_draft_model
        and not (s.get("draft_model_modules_to_not_convert")
                 or "quantized" in b.neuron.draft_config),
        "the draft is a copy of the target's settings, and would be taken for quantized as well",
        "list every module of the draft in draft_model_modules_to_not_convert, or set "
        "neuron.draft_config.quantized",
        "AWS Neuron documentation, NxD Inference API guide",
    ),
    Rule(
        "quantized-draft-kernel",
        lambda b, s: s.get("quantized_mlp_kernel_enabled") and b.is_fused,
        "quantized_mlp_kernel_enabled counts for the target: NxDI switches it off for the draft",
        "nothing to do", f"{_BASE} NeuronFusedSpecModel", "info",
    ),
    Rule(
        "chunked-prefill", lambda b, s: s.get("chunked_prefill_config") is not None,
        "chunked_prefill_config raises NotImplementedError in every model",
        "leave chunked_prefill_config out", f"{_BASE} NeuronBaseForCausalLM",
    ),
    Rule(
        "tkg-kernel-qkv",
        lambda b, s: s.get(_TKG)
        and not (s.get("qkv_kernel_enabled") or s.get("qkv_nki_kernel_enabled")),
        f"{_TKG} without a qkv kernel: AssertionError",
        "set qkv_kernel_enabled too", _CONFIG,
    ),
    Rule(
        "tkg-kernel-parts",
        lambda b, s: not s.get(_TKG) and any(
            s.get(f"attn_block_tkg_nki_kernel_{part}")
            for part in ("cache_update", "cascaded_attention")
        ),
        f"a part of the token-generation kernel is on and {_TKG} is not: AssertionError",
        f"set {_TKG} too", _CONFIG,
    ),
    Rule(
        "tkg-kernel-flash", lambda b, s: s.get(_TKG) and s.get("flash_decoding_enabled"),
        "the token-generation kernel does not do flash decoding: AssertionError",
        "choose one of the two", _CONFIG,
    ),
    Rule(
        "transposed-cache",
        lambda b, s: s.get("k_cache_transposed")
        and (s.get("flash_decoding_enabled") or s.get("is_block_kv_layout")),
        "k_cache_transposed with flash decoding or a block KV layout: AssertionError",
        "leave k_cache_transposed out", _CONFIG,
    ),
    Rule(
        "attention-dp-batching",
        lambda b, s: s.get("attention_dp_degree", 1) > 1 and not s.get("is_continuous_batching"),
        "attention_dp_degree above 1 with one request: ValueError, it needs continuous batching",
        "raise shape.batch_size, or leave attention_dp_degree out",
        f"{_CONFIG} validate_attention_data_parallel",
    ),
    Rule(
        "async-sampling",
        lambda b, s: s.get("async_mode") and not b.samples_on_device,
        "async_mode needs tokens that leave the device; here logits do",
        "set neuron.sample_on_device, or leave async_mode out", f"{_GUIDE}, async mode",
    ),
    Rule(
        "async-prefix",
        lambda b, s: s.get("async_mode") and s.get("is_prefix_caching") and b.path == "fused",
        "async_mode with prefix caching and a fused draft model raises NotImplementedError in the "
        "first step",
        "leave one of the two out", "NxDI modules/async_execution.py",
    ),
    Rule(
        "async-tail", lambda b, s: s.get("async_mode") and b.is_fused,
        "async_mode ends where two steps no longer fit, and buckets switch as much earlier",
        "nothing to do", "NxDI modules/async_execution.py", "info",
    ),
    Rule(
        "prefix-layout",
        lambda b, s: s.get("is_prefix_caching") and not s.get("is_block_kv_layout"),
        "is_prefix_caching without is_block_kv_layout, which it is built on",
        "set is_block_kv_layout, pa_num_blocks and pa_block_size", f"{_GUIDE}, prefix caching",
    ),
    Rule(
        "context-parallel-heads", _unshared_heads,
        "cp_degree above 1 with fewer cores than KV heads fails an assertion",
        "raise neuron.tp_degree, or leave cp_degree out", "NxDI modules/attention/utils.py",
    ),
    Rule(
        "context-parallel",
        lambda b, s: not _divides(b.neuron.tp_degree, s.get("cp_degree", 1)),
        "cp_degree does not divide the TP degree: ValueError",
        "choose a divisor of neuron.tp_degree", _CONFIG,
    ),
    Rule(
        "attention-dp",
        lambda b, s: not _divides(b.neuron.tp_degree, s.get("attention_dp_degree", 1))
        or not _divides(b.spec.shape.batch_size, s.get("attention_dp_degree", 1)),
        "attention_dp_degree does not divide the TP degree and the batch size: ValueError",
        "choose a divisor of both", f"{_CONFIG} validate_attention_data_parallel",
    ),
    Rule(
        "mlp-context-parallel",
        lambda b, s: s.get("mlp_cp_degree", 1) > 1 and not s.get("sequence_parallel_enabled"),
        "mlp_cp_degree above 1 without sequence_parallel_enabled: IncompatibleConfigError",
        "set sequence_parallel_enabled, or leave mlp_cp_degree out", _CONFIG,
    ),
    Rule(
        "quantized-activations", _mlp_only_kernel_conflict,
        "activation_quantization_type with MLP kernels: AssertionError",
        "choose one of the two", _CONFIG,
    ),
    Rule(
        "kernels-short-bucket",
        lambda b, s: _kernels(s) and min(b.context_buckets) <= 1024,
        "kernels in prompt graphs of up to 1024 positions: the SDK's tutorials report 'Numerical "
        "Error' (status 1003) there",
        "if it comes, let neuron.context_encoding_buckets start above 1024",
        "AWS Neuron documentation, tutorials trn2-llama3.3-70b and trn2-llama3.1-405b", "warning",
    ),
    Rule(
        "full-shuffle",
        lambda b, s: s.get("is_full_model_shuffled") and not s.get("is_mxfp4_compute"),
        "is_full_model_shuffled without is_mxfp4_compute: AssertionError",
        "leave is_full_model_shuffled out", _CONFIG,
    ),
    Rule(
        "output-logits", lambda b, s: b.path == "fused" and s.get("output_logits"),
        "output_logits with a fused draft model: the prompt graph returns the draft's logits "
        "twice, so that every cache behind them is written one place off",
        "leave output_logits out, or use eagle", f"{_BASE}; recorded with 0.9.0 on a CPU",
    ),
    Rule(
        "tensor-capture",
        lambda b, s: s.get("tensor_capture_config") and not b.samples_on_device,
        "tensor_capture_config without on-device sampling: IncompatibleConfigError",
        "set neuron.sample_on_device, or leave it out", _CONFIG,
    ),
    Rule(
        "padding-side", lambda b, s: s.get("padding_side", "right") != "right",
        "padding_side 'left': prompts are padded on the right here, and positions would be wrong",
        "leave padding_side out", "neuron_spec.backends.neuron",
    ),
)  # fmt: skip


def check_rules(build: NeuronBuild) -> Iterator[Finding]:
    """Every rule of the table that holds."""
    for rule in RULES:
        if rule.holds(build, build.settings):
            yield Finding(
                f"neuron-{rule.code}", rule.severity, f"neuron.config: {rule.message}",
                rule.remedy, rule.source, "neuron",
            )  # fmt: skip


CONSTRAINTS: tuple[Constraint, ...] = (check_rules,)
