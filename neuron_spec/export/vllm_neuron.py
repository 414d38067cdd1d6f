"""Build spec -> the vLLM Neuron plugin that needs no NxD Inference (SDK 2.31 on, trn2 and trn3).

Sources: aws-neuron-sdk (43a8962), vllm-neuron/docs/guides/reference-configuration.md,
getting-started/migration-nxdi-to-vllm-neuron.md and
tutorials/tutorial-eagle3-speculative-decoding-llama-3-1.md; vllm-project/vllm-neuron,
docs/design/speculation/speculative_decoding_design.md (3992707) and docs/guides/features-guide.md
(cf2a407). Here `num_speculative_tokens` is k, with at most k + 1 tokens a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuron_spec.export.handover import UNTRIED, Handover, Loss, Models, refuse
from neuron_spec.export.losses import (
    chain_length,
    greedy_default,
    greedy_notes,
    rule_losses,
    schedule_losses,
    shape_losses,
)
from neuron_spec.export.vllm import draft_entry, revision_option
from neuron_spec.spec.graphs import Lengths, lengths_of, step_length
from neuron_spec.spec.neuron import NeuronSpec
from neuron_spec.spec.schema import BuildSpec

_SYSTEM = "vLLM 0.21 or newer with the vLLM Neuron plugin (beta, SDK 2.31 and newer)"
_METHODS = ("none", "eagle3")
_INSTANCES = ("trn2", "trn3")
_TILE = 128  # decode_context_length_buckets are multiples of it
_COMPILE_SECONDS = "1200"  # of the migration guide


def for_vllm_neuron(spec: BuildSpec, models: Models, artifact: str) -> Handover:
    """The command for the vLLM Neuron plugin.

    Args:
        artifact: folder of the compiled graphs, which the first start fills.

    Raises:
        SpecError: no [neuron] table, or another instance or draft method than the plugin has.
    """
    neuron = _checked(spec)
    lengths = lengths_of(spec, step_length(spec))
    options: dict[str, Any] = {
        **revision_option(models.target),
        "--dtype": spec.target.dtype,
        "--tensor-parallel-size": neuron.tp_degree,
        "--max-model-len": spec.shape.max_total_tokens,
        "--max-num-seqs": spec.shape.batch_size,
        "--max-num-batched-tokens": lengths.context,
        "--no-enable-prefix-caching": None,
        **_speculation(spec, models),
        "--additional-config": {"neuron_config": neuron_config(spec, lengths)},
        **greedy_default(spec),
    }
    return Handover(
        _SYSTEM,
        ("vllm", "serve", models.target.name),
        options,
        environment={
            "NEURON_COMPILED_ARTIFACTS": artifact,
            "VLLM_NEURON_COMPILATION_TIMEOUT": _COMPILE_SECONDS,
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": _COMPILE_SECONDS,
        },
        losses=tuple(_losses(spec, neuron)),
        notes=tuple(_notes(spec)),
    )


def _checked(spec: BuildSpec) -> NeuronSpec:
    neuron, method = spec.neuron, spec.draft.method
    if neuron is None:
        raise refuse(spec, "has no [neuron] table", "add one with instance and tp_degree")
    if not neuron.instance.startswith(_INSTANCES):
        raise refuse(
            spec,
            f"neuron.instance '{neuron.instance}': the plugin runs on trn2 and trn3 only",
            "export vllm-nxdi, with SDK 2.28",
        )
    if method not in _METHODS:
        raise refuse(
            spec,
            f"draft.method '{method}': of this spec's methods the plugin has eagle3 only",
            "use an EAGLE-3 draft (the migration guide's advice too), or export vllm-nxdi",
        )
    return neuron


def _speculation(spec: BuildSpec, models: Models) -> dict[str, Any]:
    if not spec.speculates:
        return {}
    return {
        "--speculative-config": {
            "method": spec.draft.method,
            **draft_entry(models.draft),
            "num_speculative_tokens": chain_length(spec),
        }
    }


def neuron_config(spec: BuildSpec, lengths: Lengths) -> dict[str, Any]:
    """Buckets under their new names, those that the spec gives; greedy sampling on the device.

    The largest of `num_batched_tokens_buckets` has to be --max-num-batched-tokens, that of
    `num_seqs_buckets` --max-num-seqs; --max-model-len itself is no decode bucket.
    """
    neuron = spec.neuron
    assert neuron is not None
    config: dict[str, Any] = {"num_seqs_buckets": [spec.shape.batch_size]}
    if neuron.context_encoding_buckets or not neuron.bucketing:
        given = neuron.context_encoding_buckets or (lengths.context,)
        config["num_batched_tokens_buckets"] = list(given)
    decode = [bucket for bucket in neuron.token_generation_buckets if _is_decode(spec, bucket)]
    if decode:
        config["decode_context_length_buckets"] = decode
    if spec.verification.rule == "greedy":
        config["on_device_sampling_config"] = {"all_greedy": True}
    return config


def _is_decode(spec: BuildSpec, bucket: int) -> bool:
    return bucket < spec.shape.max_total_tokens and bucket % _TILE == 0


def _losses(spec: BuildSpec, neuron: NeuronSpec) -> Iterator[Loss]:
    yield from shape_losses(spec)
    yield from rule_losses(spec)
    yield from schedule_losses(spec, "it compiles one length")
    if spec.draft.sampled:
        yield Loss("draft.sampled", "the plugin's draft is always greedy")
    dropped = [b for b in neuron.token_generation_buckets if not _is_decode(spec, b)]
    if dropped:
        yield Loss(
            f"neuron.token_generation_buckets {dropped}",
            "decode buckets are multiples of 128 below --max-model-len, which is always there",
        )
    yield from _neuron_losses(spec, neuron)
    yield Loss(
        "shape.max_prompt_tokens",
        "longer prompts are not refused but encoded in segments of --max-num-batched-tokens",
    )


def _neuron_losses(spec: BuildSpec, neuron: NeuronSpec) -> Iterator[Loss]:
    nxdi_only = "a setting of NxD Inference; the plugin has its own model code"
    for table in ("config", "draft_config", "sampling"):
        names = sorted(getattr(neuron, table))
        if names:
            yield Loss(f"neuron.{table}: {', '.join(names)}", nxdi_only)
    if neuron.draft_tp_degree not in (None, neuron.tp_degree):
        yield Loss("neuron.draft_tp_degree", "the draft is sharded like the target")
    if neuron.logical_nc_config is not None:
        yield Loss("neuron.logical_nc_config", "no option of the plugin; the platform's default")
    if neuron.save_sharded_checkpoint:
        yield Loss("neuron.save_sharded_checkpoint", nxdi_only)
    if neuron.sample_on_device and spec.verification.rule != "greedy":
        yield Loss("neuron.sample_on_device", "left to the host, which honours every request")


def _notes(spec: BuildSpec) -> Iterator[str]:
    assert spec.neuron is not None
    yield f"neuron.sdk {spec.neuron.sdk} is NxD Inference's; artifacts cannot be carried over"
    yield UNTRIED
    yield from greedy_notes(spec, is_enforced=True)
    if not spec.speculates:
        return
    k = chain_length(spec)
    yield f"no drafts in the last {k} positions of --max-model-len, where decoding goes on without"
    yield "the draft is the published checkpoint, not the one that `prepare` makes for NxDI"
    yield "EAGLE3 is listed for Llama 3 and gpt-oss targets (the plugin's model recipes)"
    if spec.verification.rule != "greedy":
        yield (
            "sampling is verified on the host, as the plugin's design page says; its configuration "
            "reference asks for on-device sampling with speculation: try it before you rely on it"
        )
