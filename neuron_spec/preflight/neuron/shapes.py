"""Lengths, graphs of fixed length, and how many requests run side by side."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error, info, listed, warning
from neuron_spec.spec.graphs import TILE

_CONFIG = "NxDI models/config.py"
_BUCKET = "NxDI models/model_wrapper.py _get_seq_bucket"
_GUIDE = "AWS Neuron documentation, NxD Inference feature guide, Speculative Decoding"
_ADAPTER = "NxDI utils/hf_adapter.py"


def check_context_buckets(build: NeuronBuild) -> Iterator[Finding]:
    """Every prompt fits a prompt graph, and every prompt graph the cache."""
    longest, prompt = build.context_buckets[-1], build.spec.shape.max_prompt_tokens
    if longest < prompt:
        yield error(
            "context-buckets-short",
            f"the longest of neuron.context_encoding_buckets is {longest}; a prompt may have "
            f"{prompt} tokens (shape.max_prompt_tokens)",
            f"let the last bucket be at least {prompt}",
            "NxDI models/model_wrapper.py pad_inputs",
        )
    if longest > build.cache_length:
        yield error(
            "context-buckets-long",
            f"the longest of neuron.context_encoding_buckets is {longest}, the KV cache has "
            f"{build.cache_length} positions",
            f"let the last bucket be at most {build.cache_length}",
            f"{_CONFIG} (assertion: max_context_length <= max_length)",
        )


def check_token_buckets(build: NeuronBuild) -> Iterator[Finding]:
    """A decoding graph is chosen by the positions in use plus a whole step, so that the last
    step of the longest request needs room behind it; EAGLE would repeat its last position instead
    of failing."""
    if build.cache_length >= build.needed_positions:
        return
    yield error(
        "token-buckets-short",
        f"the longest of neuron.token_generation_buckets is {build.cache_length}; "
        f"shape.max_total_tokens {build.spec.shape.max_total_tokens} and a step of {build.step} "
        f"positions need {build.needed_positions}",
        f"let the last bucket be at least {build.needed_positions}",
        _BUCKET,
    )


def check_bucket_of_a_step(build: NeuronBuild) -> Iterator[Finding]:
    """A prompt graph as long as a step is taken for one."""
    if not (build.spec.speculates and build.step in build.context_buckets):
        return
    yield error(
        "bucket-is-step",
        f"a prompt graph has {build.step} positions, as a step has: NxDI tells prompt and step "
        "apart by this number alone, and runs the wrong graph",
        "choose other neuron.context_encoding_buckets, or another draft length",
        "NxDI models/model_base.py _is_context_encoding; recorded with 0.9.0 on a CPU: "
        "RuntimeError",
    )


def check_tiling(build: NeuronBuild) -> Iterator[Finding]:
    """Fused graphs want the KV cache in tiles of 128 positions, which is decided silently."""
    length = build.cache_length
    if not build.is_fused or length <= TILE:
        return
    if length % TILE or build.settings.get("disable_kv_cache_tiling"):
        yield warning(
            "cache-untiled",
            f"the KV cache of {length} positions is not tiled: NxDI does it for multiples of "
            f"{TILE}, unless disable_kv_cache_tiling is set; fused graphs are slower without",
            f"let the last of neuron.token_generation_buckets be a multiple of {TILE}",
            f"{_CONFIG} kv_cache_tiling",
        )


def check_batch(build: NeuronBuild) -> Iterator[Finding]:
    """Which graphs take more than one request."""
    batch = build.spec.shape.batch_size
    if batch == 1:
        return
    found = f"shape.batch_size {batch} with "
    if build.path in ("unfused", "medusa"):
        name = "an unfused draft model" if build.path == "unfused" else "Medusa"
        yield error(
            "batch",
            f"{found}{name}: NxDI's row counts are fixed at one request",
            "set shape.batch_size to 1"
            + (", or neuron.fused to true" if build.path == "unfused" else ", or use eagle"),
            f"{_GUIDE}; {_ADAPTER}",
        )
    elif build.path == "fused":
        yield warning(
            "batch-draft-mask",
            f"{found}a fused draft model: each row's draft also attends to positions that only "
            "other rows have; proposals get worse, the output stays the target's",
            "use eagle, which is not affected, or set shape.batch_size to 1",
            "NxDI models/model_base.py; recorded with 0.9.0 on a CPU",
        )
    elif build.is_eagle:
        yield info(
            "batch-adapter",
            f"{found}EAGLE: the graph takes it, NxDI's own generation loop takes one request; the "
            "runner reads the graph's outputs itself",
            "nothing to do: the on-instance smoke test compares batched with single requests",
            f"{_GUIDE}; {_ADAPTER} _fused_assisted_decoding",
        )


def check_load_bands(build: NeuronBuild) -> Iterator[Finding]:
    """A fused graph always drafts what it was compiled for."""
    if not build.spec.draft.by_load or build.path not in (
        "fused",
        "eagle",
        "eagle-tree",
        "eagle3",
        "medusa",
    ):
        return
    lengths = sorted({k for _, k in build.spec.draft.by_load})
    yield error(
        "by-load",
        f"draft.by_load asks for draft lengths {listed(lengths)}: a graph that drafts and verifies "
        "on the device has one",
        "leave draft.by_load out, or build one artifact a draft length",
        "NxDI models/model_base.py NeuronFusedSpecModel",
    )


def check_pinned_shapes(build: NeuronBuild) -> Iterator[Finding]:
    """Graphs have fixed shapes anyway, but which one runs follows the longest running request."""
    if build.spec.verification.pin_shapes:
        yield error(
            "pin-shapes",
            "verification.pin_shapes promises bitwise the same logits for every k, which is "
            "checked for the reference backend only: on a device the token-generation bucket, and "
            "with it the order of sums, follows the longest request of the batch",
            "leave verification.pin_shapes out, and measure with neuron-spec verify",
            _BUCKET,
        )


CONSTRAINTS: tuple[Constraint, ...] = (
    check_context_buckets,
    check_token_buckets,
    check_bucket_of_a_step,
    check_tiling,
    check_batch,
    check_load_bands,
    check_pinned_shapes,
)
