"""Does NxDI's class compute what config.json says? Where it reads a field or not is silent: the
build compiles, and gives other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.platforms.nxdi_models import GEMMA3_ROPE_FACTOR, GEMMA3_VOCAB_SIZE
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error, warning


def check_rope(build: NeuronBuild) -> Iterator[Finding]:
    """Only Llama's and gpt-oss's classes read rope_scaling; the others rotate without scaling."""
    for role, config, family in build.decoders:
        if config.rope_kind == "default":
            continue
        if not family.reads_rope_scaling and family.family != "gemma3":
            yield error(
                f"{role}-rope-ignored",
                f"the {role}'s rope_scaling '{config.rope_kind}' is not read by NxDI's "
                f"'{family.family}' class: it would compile and rotate unscaled",
                f"use a {role} without rope_scaling, or of a family that reads it (llama)",
                family.source,
            )
        elif family.family == "llama" and config.rope_kind != "llama3":
            yield warning(
                f"{role}-rope-precision",
                f"the {role}'s rope_scaling '{config.rope_kind}' is computed by Hugging Face's "
                "rotary embedding in NxDI, which its own comment calls imprecise on Neuron",
                "compare with neuron-spec verify on the instance",
                family.source,
            )


def check_chunked_attention(build: NeuronBuild) -> Iterator[Finding]:
    """Llama 4's chunked attention takes no speculation."""
    for role, config, _ in build.decoders:
        if build.spec.speculates and config.raw.get("attention_chunk_size"):
            yield error(
                "chunked-attention",
                f"the {role} has attention_chunk_size {config.raw['attention_chunk_size']}: "
                "chunked attention raises NotImplementedError with speculation",
                'use another target, or draft.method "none"',
                "NxDI modules/attention/attention_base.py",
            )


def check_head_dim(build: NeuronBuild) -> Iterator[Finding]:
    """Heads whose size the class derives instead of reading it."""
    for role, config, family in build.decoders:
        derived = config.hidden_size // config.num_attention_heads
        if family.reads_head_dim or config.head_dim == derived:
            continue
        yield error(
            f"{role}-head-dim",
            f"the {role}'s head_dim is {config.head_dim}; NxDI's '{family.family}' class takes "
            f"hidden_size / num_attention_heads = {derived}",
            f"use a {role} of another family",
            family.source,
        )


def check_gemma3(build: NeuronBuild) -> Iterator[Finding]:
    """Gemma 3's class overwrites fields of config.json with those of the larger sizes."""
    for role, config, family in build.decoders:
        if family.family != "gemma3":
            continue
        factor = (config.rope_scaling or {}).get("factor", 1)
        if (config.vocab_size, factor) != (GEMMA3_VOCAB_SIZE, GEMMA3_ROPE_FACTOR):
            yield error(
                f"{role}-gemma3-fixed",
                f"the {role} has vocab_size {config.vocab_size} and rope factor {factor}; NxDI "
                f"sets {GEMMA3_VOCAB_SIZE} and {GEMMA3_ROPE_FACTOR:g} for every Gemma 3",
                "use one of the larger Gemma 3 models, or another family",
                family.source,
            )


def check_draft_biases(build: NeuronBuild) -> Iterator[Finding]:
    """The Llama class that runs EAGLE drafts has biases of q, k, v and o, or none: it reads
    attention_bias, and missing or superfluous tensors are dropped without a word."""
    if not build.is_eagle or build.draft is None or not build.draft_names:
        return
    reads = bool(build.draft.raw.get("attention_bias", False))
    parts = [part for part in "qkvo" if _bias(part) in build.draft_names]
    if parts == (list("qkvo") if reads else []):
        return
    yield error(
        "draft-biases",
        f"the draft holds biases of {', '.join(parts) or 'no'} projections and config.json says "
        f"attention_bias {str(reads).lower()}: NxDI's Llama class would "
        + ("leave those without a tensor at their initial values" if reads else "drop them"),
        "use a draft head of a Llama layer, or the reference backend",
        "NxDI models/llama/modeling_llama.py (qkv_bias and o_bias are both attention_bias)",
    )


def _bias(part: str) -> str:
    return f"layers.0.self_attn.{part}_proj.bias"


def check_quantized_target(build: NeuronBuild) -> Iterator[Finding]:
    """Published scales are not read; NxDI quantizes and stores a checkpoint of its own.
    gpt-oss's class unpacks its own format."""
    config, family = build.target, build.family
    if config is None or family is None or family.family == "gpt_oss":
        return
    if config.raw.get("quantization_config") and not build.settings.get("quantized"):
        yield error(
            "target-quantized",
            "the target's config.json has a quantization_config and neuron.config.quantized is "
            "not set: NxDI would load the packed values as plain numbers",
            "use the unquantized target, or set quantized and quantized_checkpoints_path",
            "NxDI models/application_base.py get_state_dict",
        )


CONSTRAINTS: tuple[Constraint, ...] = (
    check_rope,
    check_chunked_attention,
    check_head_dim,
    check_gemma3,
    check_draft_biases,
    check_quantized_target,
)
