"""Which verification rules and sampling options each way through NxDI can honour."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.platforms.nxdi_keywords import release_number
from neuron_spec.platforms.nxdi_models import MEDUSA_TOP_K, Path
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error, listed, warning

_SAMPLER = "NxDI modules/generation/sampling.py"
_BASE = "NxDI models/model_base.py"
DEFAULT_TOP_K = 256  # OnDeviceSamplingConfig's global_topk

# Rules of the graphs that verify on the device; where the host verifies, every rule is possible.
_RULES: dict[Path, tuple[str, ...]] = {
    "fused": ("greedy",),
    "eagle": ("greedy", "rejection"),
    "eagle3": ("greedy", "rejection"),
    "eagle-tree": ("greedy",),
    "medusa": ("greedy",),
}
_REASONS: dict[Path, str] = {
    "fused": "with do_sample the target samples its last position only: IndexError while tracing",
    "eagle": "the graph compares tokens, or accepts by p / q of a draft that is taken for certain",
    "eagle3": "the graph compares tokens, or accepts by p / q of a draft that is taken for certain",
    "eagle-tree": "the token-tree path sets greedy itself, whatever do_sample says",
    "medusa": "the graph compares candidates with the target's best token; Medusa's typical "
    "acceptance is not implemented",
}


def check_rule(build: NeuronBuild) -> Iterator[Finding]:
    """Sampling on the device is EAGLE chains' alone."""
    rule, path = build.spec.verification.rule, build.path
    rules = _RULES.get(path) if path else None
    if path is None or rules is None or rule in rules:
        return
    by_host = "; or neuron.fused = false, where the host verifies by any rule"
    yield error(
        "rule",
        f"verification.rule '{rule}' with '{path}': {_REASONS[path]}",
        f"use {' or '.join(rules)}" + (by_host if path == "fused" else ""),
        _BASE,
    )


def check_drawn_drafts(build: NeuronBuild) -> Iterator[Finding]:
    """A fused draft is greedy, with probability 1; NxDI switches its sampling off."""
    if build.spec.draft.sampled and build.is_fused:
        yield error(
            "draft-sampled",
            "draft.sampled is true: a fused graph takes the draft's best token",
            "leave draft.sampled out" + ", or set neuron.fused to false" * (build.path == "fused"),
            f"{_BASE} NeuronFusedSpecModel (draft_config.on_device_sampling_config)",
        )


def check_logits_for_the_host(build: NeuronBuild) -> Iterator[Finding]:
    """A graph that samples gives no logits to verify with."""
    if build.path in ("host", "unfused") and build.neuron.sample_on_device:
        yield error(
            "host-logits",
            "neuron.sample_on_device is true and the host verifies: a graph that samples gives no "
            "logits",
            "leave neuron.sample_on_device out",
            "NxDI utils/hf_adapter.py _standard_assisted_decoding",
        )


def check_unused_sampling(build: NeuronBuild) -> Iterator[Finding]:
    """Options of a sampler that is not in the graph."""
    if build.neuron.sampling and build.path is not None and not build.samples_on_device:
        yield error(
            "sampling-unused",
            f"neuron.sampling ({listed(tuple(build.neuron.sampling))}) is given, and nothing is "
            "sampled on the device",
            "leave neuron.sampling out, or set neuron.sample_on_device",
            "neuron_spec.spec.neuron",
        )


def check_medusa_top_k(build: NeuronBuild) -> Iterator[Finding]:
    """With another number every candidate comes from the first head."""
    found = build.neuron.sampling.get("global_topk", MEDUSA_TOP_K)
    if build.path == "medusa" and found != MEDUSA_TOP_K:
        yield error(
            "medusa-top-k",
            f"neuron.sampling.global_topk is {found}: Medusa's tables take {MEDUSA_TOP_K} ids a "
            "head, and with another number silently mix up the heads",
            "leave global_topk out",
            "NxD utils/medusa_utils.py (TOPK = 10)",
        )


def check_top_k_of_vocabulary(build: NeuronBuild) -> Iterator[Finding]:
    """More candidates than the vocabulary has are an error while tracing."""
    if not build.samples_on_device or build.target is None:
        return
    top_k, vocab = _global_top_k(build), build.target.vocab_size
    if top_k > vocab:
        yield error(
            "top-k-vocabulary",
            f"global_topk {top_k} is larger than the vocabulary of {vocab}: RuntimeError",
            f"set neuron.sampling.global_topk to at most {vocab}",
            f"{_SAMPLER}; recorded with 0.9.0 on a CPU",
        )


def check_sampling_values(build: NeuronBuild) -> Iterator[Finding]:
    """Values that are refused at run time, or mean something else."""
    top_k = _global_top_k(build)
    for name, is_wrong, why in (
        ("top_k", _wrong_top_k(build, top_k), f"1 … global_topk ({top_k}); 0 and -1 draw from all "
         "candidates alike"),
        ("top_p", not 0 < _number(build, "top_p", 1.0) <= 1, "above 0 and at most 1"),
        ("temperature", _number(build, "temperature", 1.0) <= 0, "above 0: 0 is divided by"),
    ):  # fmt: skip
        if name in build.neuron.sampling and is_wrong:
            yield error(
                "sampling-value",
                f"neuron.sampling.{name} is {build.neuron.sampling[name]!r}, expected {why}",
                "correct it, or leave it out: requests bring their own",
                f"{_SAMPLER} validate_sampling_params",
            )


def _wrong_top_k(build: NeuronBuild, most: int) -> bool:
    top_k = build.neuron.sampling.get("top_k", 1)
    return type(top_k) is not int or not 1 <= top_k <= most


def _number(build: NeuronBuild, name: str, default: float) -> float:
    value = build.neuron.sampling.get(name, default)
    return value if type(value) in (int, float) else -1.0


def check_deterministic(build: NeuronBuild) -> Iterator[Finding]:
    """It fixes the number that draws resampled tokens at 0.5, not the accept test."""
    draws = build.spec.verification.rule != "greedy"
    if draws and build.neuron.sampling.get("deterministic"):
        yield error(
            "deterministic",
            "neuron.sampling.deterministic: resampled tokens are all drawn with the number 0.5, so "
            f"that rule '{build.spec.verification.rule}' no longer gives the target's distribution",
            "leave deterministic out, or use rule greedy",
            f"{_SAMPLER}; recorded with 0.9.0 on a CPU",
        )


def check_truncated_distribution(build: NeuronBuild) -> Iterator[Finding]:
    """The law that is kept is that of the device's own filter."""
    if build.path not in ("eagle", "eagle3") or build.spec.verification.rule == "greedy":
        return
    top_k, vocab = _global_top_k(build), build.target.vocab_size if build.target else None
    if top_k <= 0 or (vocab is not None and top_k >= vocab):
        return  # 0 and below sort the whole vocabulary
    yield warning(
        "sampling-truncated",
        f"the device samples from the {top_k} likeliest tokens only, and its top_p leaves out the "
        "token that crosses the threshold (transformers keeps it): the output has the "
        "distribution of this filter, not of the whole vocabulary",
        "nothing to do if that is what you want; else draft with a model and neuron.fused = false, "
        "where the host verifies on all logits",
        f"{_SAMPLER} Sampler; recorded with 0.9.0 on a CPU",
    )


def check_top_k_kernel(build: NeuronBuild) -> Iterator[Finding]:
    """From SDK 2.29 on, turning the Top-K kernel off has a known accuracy issue."""
    is_new = release_number(build.neuron.sdk) >= (2, 29)
    is_off = build.neuron.sampling.get("top_k_kernel_enabled") is False
    if is_new and is_off and build.spec.shape.batch_size <= 4:
        yield error(
            "top-k-kernel",
            "neuron.sampling.top_k_kernel_enabled is false: known to give wrong results with "
            f"batches of up to 4 (here {build.spec.shape.batch_size})",
            "leave top_k_kernel_enabled out",
            "AWS Neuron release notes 2.29.0, NxD Inference, known issues",
        )


def _global_top_k(build: NeuronBuild) -> int:
    """Of another type it is no number to compare with; see `keywords`."""
    default = MEDUSA_TOP_K if build.path == "medusa" else DEFAULT_TOP_K
    given = build.neuron.sampling.get("global_topk", default)
    return given if type(given) is int else default


CONSTRAINTS: tuple[Constraint, ...] = (
    check_rule,
    check_drawn_drafts,
    check_logits_for_the_host,
    check_unused_sampling,
    check_medusa_top_k,
    check_top_k_of_vocabulary,
    check_sampling_values,
    check_deterministic,
    check_truncated_distribution,
    check_top_k_kernel,
)
