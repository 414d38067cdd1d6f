"""Builds for Neuron that are described, not stored: sizes of 70B models need no files."""

from __future__ import annotations

from typing import Any

from neuron_spec.checkpoints.model_config import ModelConfig, parse_config
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron import check_build
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.spec import BuildSpec

# Of `preflight.neuron.runner`.
RUNNER_CODES = ("async-mode", "block-kv-layout", "prefix-caching", "global-top-k")
# Published config.json files, what decides sizes of them.
_LLAMA = {
    "model_type": "llama", "max_position_embeddings": 131072, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-1b": {
        **_LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "head_dim": 64, "tie_word_embeddings": True,
    },
    "llama-8b": {
        **_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama-70b": {
        **_LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "llama-405b": {
        **_LLAMA, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
        "num_attention_heads": 128,
    },
    "smollm2-135m": {
        **_LLAMA, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
        "rope_scaling": None, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
    "vicuna-7b": {
        **_LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
        "rope_scaling": None, "max_position_embeddings": 4096,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201088, "num_local_experts": 128, "sliding_window": 128,
        "max_position_embeddings": 131072, "tie_word_embeddings": False,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0},
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "qwen2-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "vocab_size": 152064, "max_position_embeddings": 32768,
    },
    "qwen3-32b": {
        "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600,
        "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960,
    },
    "mistral-7b": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 32768, "max_position_embeddings": 32768, "sliding_window": None,
    },
    "gemma3-27b": {
        "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 128, "vocab_size": 262208, "sliding_window": 1024,
        "use_sliding_window": True, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "max_position_embeddings": 131072,
    },
}  # fmt: skip


def config(name: str, **changes: Any) -> ModelConfig:
    from pathlib import Path

    return parse_config({**CONFIGS[name], **changes}, Path("/nowhere"))


def eagle_of(name: str, **changes: Any) -> ModelConfig:
    """One layer of the target's sizes."""
    return config(name, num_hidden_layers=1, tie_word_embeddings=False, **changes)


Models = dict[str, Any]


def build_of(
    *,
    target: str | ModelConfig | None = "llama-8b",
    draft: str | ModelConfig | None = None,
    method: str = "none",
    rule: str = "greedy",
    dtype: str = "bfloat16",
    draft_fields: dict[str, Any] | None = None,
    shape: dict[str, Any] | None = None,
    neuron: dict[str, Any] | None = None,
    draft_names: tuple[str, ...] = (),
    target_type: str | None = None,
    verification: dict[str, Any] | None = None,
) -> NeuronBuild:
    """A build; by default Llama-3.1-8B alone on one Trainium2 chip."""
    takes_model = method in ("model", "eagle", "eagle3", "medusa", "hydra")
    spec = BuildSpec.model_validate(
        {
            "target": {"model": "target", "dtype": dtype},
            "draft": {
                "method": method, **({"model": "draft"} if takes_model else {}),
                **(draft_fields or {}),
            },
            "verification": {
                "rule": rule, **({"lenience": 0.5} if rule == "lenient" else {}),
                **(verification or {}),
            },
            "shape": {"max_prompt_tokens": 1024, "max_total_tokens": 2048, **(shape or {})},
            "neuron": {"instance": "trn2.3xlarge", "tp_degree": 4, **(neuron or {})},
        }
    )  # fmt: skip
    assert spec.neuron is not None
    models = [config(m) if isinstance(m, str) else m for m in (target, _draft(method, draft))]
    types = [model.model_type if model else None for model in models]
    return NeuronBuild(
        spec,
        spec.neuron,
        target=models[0],
        draft=models[1],
        target_type=target_type or types[0],
        draft_type=types[1],
        draft_names=frozenset(draft_names),
        num_medusa_heads=4 if method == "medusa" else None,
    )


def _draft(method: str, draft: str | ModelConfig | None) -> str | ModelConfig | None:
    if draft is not None:
        return draft
    if method in ("eagle", "eagle3"):
        return eagle_of("llama-8b")
    return "llama-1b" if method == "model" else None


def findings_of(**fields: Any) -> list[Finding]:
    return check_build(build_of(**fields))


def codes_of(**fields: Any) -> set[str]:
    return {finding.code.removeprefix("neuron-") for finding in findings_of(**fields)}


def errors_of(**fields: Any) -> set[str]:
    return {f.code.removeprefix("neuron-") for f in findings_of(**fields) if f.severity == "error"}


def assert_found(code: str, violation: Models, passing: Models, severity: str = "error") -> None:
    """One build that violates a constraint, and one that just passes it, without any error; what
    NxDI takes and only our runner does not is none of NxDI's constraints."""
    found = {f.code: f for f in findings_of(**violation)}
    assert f"neuron-{code}" in found, sorted(found)
    finding = found[f"neuron-{code}"]
    assert finding.severity == severity and finding.backend == "neuron"
    assert finding.message and finding.remedy and finding.source
    assert code not in codes_of(**passing)
    by_runner = set() if code.startswith("runner-") else {f"runner-{name}" for name in RUNNER_CODES}
    assert errors_of(**passing) <= by_runner
