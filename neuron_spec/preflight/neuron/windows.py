"""Sliding windows and sinks: which classes apply them, and which ways of drafting they bear.

A windowed layer of NxDI keeps `sliding_window` positions, and overwrites the oldest in turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.platforms.nxdi_models import ROLLING_CACHE
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error, warning

_BASE = "NxDI models/model_base.py"
_MASK = f"{_BASE} _create_windowed_attn_mask_tkg"
_CACHE = "NxDI modules/kvcache/kv_cache_manager.py"
_WINDOWED = ("mistral", "gpt_oss", "gemma3_text")  # whose window is used without a flag saying so
_MASKED = (*ROLLING_CACHE, "gpt_oss")  # families whose masks model_base.py makes
_KERNEL_TILE = 512  # MIN_SLIDING_WINDOW_SEQ_TILE_SIZE
_KERNELS = ("attn_block_tkg_nki_kernel_enabled", "attn_block_tkg_nki_kernel_cascaded_attention")


def window_of(config: ModelConfig) -> int | None:
    """The sliding window that a model was trained with."""
    if config.model_type in _WINDOWED:
        return config.raw.get("sliding_window")
    return config.sliding_window


def check_ignored(build: NeuronBuild) -> Iterator[Finding]:
    """A sliding window that the class leaves out."""
    for role, config, family in build.decoders:
        if window_of(config) is None or family.reads_window:
            continue
        yield error(
            f"{role}-window-ignored",
            f"the {role}'s sliding_window {window_of(config)} is not applied by NxDI's "
            f"'{family.family}' class: beyond it the output would be another model's",
            f"set use_sliding_window to false in a copy if the {role} was trained without it, or "
            f"use another {role}",
            family.source,
        )


def check_applied(build: NeuronBuild) -> Iterator[Finding]:
    """The Llama class applies a field that Llama itself, in transformers, does not read."""
    for role, config, family in build.decoders:
        stray = config.raw.get("sliding_window")
        if family.family == config.model_type == "llama" and stray:
            yield error(
                f"{role}-window-applied",
                f"the {role}'s config.json has sliding_window {stray}, which transformers' Llama "
                "does not read and NxDI's applies",
                "set sliding_window to null in a copy of the directory",
                "NxDI models/llama/modeling_llama.py NeuronLlamaAttention, NeuronLlamaModel",
            )


def check_fused(build: NeuronBuild) -> Iterator[Finding]:
    """Fused speculation with a window needs a cache for it, which gpt-oss alone has, and the
    cascaded token-generation kernel."""
    target, family = build.target, build.family
    if not build.is_fused or target is None or family is None or not family.reads_window:
        return
    window, missing = window_of(target), [n for n in _KERNELS if not build.settings.get(n)]
    if window and family.family in ROLLING_CACHE:
        yield error(
            "window-cache",
            f"the target has a sliding window of {window}: the mask of a fused step is made for a "
            f"KV cache of {window} + {build.step} - 2 positions, and '{family.family}' has one of "
            f"{window}",
            "draft with ngram, or with a model and neuron.fused = false, within the window; or use "
            "a target without a window",
            f"{_BASE} _create_windowed_attn_mask_spec_decode; {_CACHE} _init_kv_shape",
        )
    elif window and missing:
        yield error(
            "window-kernel",
            f"the target has a sliding window of {window}: fused speculation asserts "
            f"{' and '.join(missing)}",
            "set them in [neuron.config], with qkv_kernel_enabled",
            f"{_BASE} _create_windowed_attn_mask_spec_decode, modules/attention/attention_base.py",
        )


def check_medusa(build: NeuronBuild) -> Iterator[Finding]:
    """Medusa's forward makes its masks without positions, which a window's needs."""
    target = build.target
    if build.path == "medusa" and target is not None and window_of(target):
        yield error(
            "window-medusa",
            f"the target has a sliding window of {window_of(target)}: NxDI's Medusa makes its "
            "masks without positions, and a window's needs them (TypeError while tracing)",
            "use a target without a window",
            f"{_BASE} _medusa_forward, create_attn_mask",
        )


def check_unfused(build: NeuronBuild) -> Iterator[Finding]:
    """All positions of a step get one mask, and what a step wrote of rejected tokens counts as
    the window's oldest entries: right only until the window is full."""
    target, family = build.target, build.family
    if build.path not in ("host", "unfused") or target is None or family is None:
        return
    window = window_of(target)
    if not window or family.family not in _MASKED or build.needed_positions < window:
        return
    yield error(
        "window-steps",
        f"the target has a sliding window of {window}, and requests with a step behind them reach "
        f"{build.needed_positions} positions: once the window is full, steps of several positions "
        "read entries that rejected tokens left in the cache",
        f"lower shape.max_total_tokens to at most {window - 1 - build.step}"
        if window - 1 > build.step
        else 'use draft.method "none"',
        f"{_MASK}; {_CACHE} update_kv_by_layer_id",
    )


def check_sinks(build: NeuronBuild) -> Iterator[Finding]:
    """gpt-oss's attention sinks, on the one chip whose prompt kernels do not take them."""
    family, instance = build.family, build.instance
    if family is None or family.family != "gpt_oss" or instance is None:
        return
    has_kernels = build.settings.get("attn_kernel_enabled") is not False
    if instance.family == "trn1" and has_kernels and build.context_buckets[-1] >= _KERNEL_TILE:
        yield error(
            "sinks-chip",
            f"prompt graphs of {_KERNEL_TILE} positions and more use kernels that on trn1 take no "
            "attention sinks: they are left out of windowed layers, and refused in the others "
            "(AssertionError)",
            "set attn_kernel_enabled to false in [neuron.config], or use trn2",
            "NxDI 0.8 modules/attention/attention_base.py perform_prefill_windowed_attn",
        )


def check_draft(build: NeuronBuild) -> Iterator[Finding]:
    """Rejected drafts stay in the draft's window; that costs acceptance, not the output."""
    for role, config, family in build.decoders:
        window = window_of(config) if family.reads_window else None
        if role == "draft" and window and build.needed_positions >= window:
            yield warning(
                "draft-window",
                f"the draft has a sliding window of {window}: once it is full, entries of rejected "
                "drafts count as its oldest ones; drafts may get worse, the output stays the "
                "target's",
                f"nothing to do, or use a draft without a window below {build.needed_positions}",
                f"{_MASK}; {_CACHE} update_kv_by_layer_id",
            )


CONSTRAINTS: tuple[Constraint, ...] = (
    check_ignored,
    check_applied,
    check_fused,
    check_medusa,
    check_unfused,
    check_sinks,
    check_draft,
)
