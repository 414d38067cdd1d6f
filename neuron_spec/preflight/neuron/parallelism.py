"""Do the TP degrees fit the instance, the heads and the vocabularies?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.checkpoints.model_config import ModelConfig
from neuron_spec.platforms.instances import TP_SOURCE
from neuron_spec.platforms.nxdi_models import FamilySupport
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error, listed, warning
from neuron_spec.preflight.neuron.memory_estimate import GIB, stored_bytes
from neuron_spec.preflight.neuron.sharding import divides, shard_heads

_GQA = "NxDI modules/attention/gqa.py get_shardable_head_counts"


def check_tp_degree(build: NeuronBuild) -> Iterator[Finding]:
    """A TP degree that the runtime supports and the instance has cores for."""
    instance, degree = build.instance, build.neuron.tp_degree
    if instance is None or build.lnc not in instance.chip.lncs:
        return
    cores, supported = instance.logical_cores(build.lnc), instance.tp_degrees(build.lnc)
    if degree > cores:
        yield error(
            "tp-cores",
            f"neuron.tp_degree {degree}: {instance.name} has {cores} logical cores",
            f"set neuron.tp_degree to one of {listed(supported)}",
            instance.source,
        )
    elif degree not in supported:
        yield error(
            "tp-unsupported",
            f"neuron.tp_degree {degree}: on {instance.name} the runtime supports "
            f"{listed(supported)}",
            f"set neuron.tp_degree to one of {listed(supported)}",
            TP_SOURCE,
        )


def check_draft_tp_degree(build: NeuronBuild) -> Iterator[Finding]:
    """A fused draft runs in groups of the target's cores."""
    degree, target = build.draft_tp_degree, build.neuron.tp_degree
    if build.has_draft_model and (degree > target or target % degree):
        yield error(
            "draft-tp",
            f"neuron.draft_tp_degree {degree} does not divide neuron.tp_degree {target}",
            "choose a divisor, or leave neuron.draft_tp_degree out",
            "NxD parallel_layers/parallel_state.py initialize_speculative_draft_group (assertion)",
        )


def check_heads(build: NeuronBuild) -> Iterator[Finding]:
    """Heads that do not divide are padded, KV heads that do not divide the degree are copied
    for every query head. The output is right; NxDI's log mentions the second one."""
    for role, config, degree in _decoders(build):
        heads = shard_heads(config, degree)
        parts = []
        if heads.query != config.num_attention_heads:
            parts.append(f"{config.num_attention_heads} attention heads become {heads.query}")
        if heads.is_converted:
            parts.append(
                f"{config.num_key_value_heads} KV heads become {heads.key_value}, and the KV cache "
                f"{heads.key_value / config.num_key_value_heads:.1f} times as large"
            )
        if parts:
            yield warning(
                f"{role}-heads",
                f"TP degree {degree} of the {role}: {'; '.join(parts)}",
                "choose a degree that divides the attention heads and divides, or is a multiple "
                "of, the KV heads",
                _GQA,
            )


def check_vocabulary(build: NeuronBuild) -> Iterator[Finding]:
    """Rows that are not padded have to divide: LM heads of some families, Medusa's projections
    of all."""
    for role, config, degree, family in _families(build):
        if not family.pads_lm_head and not divides(degree, config.vocab_size):
            yield _vocabulary(role, config, degree, "the LM head is", family.source)
    target, degree = build.target, build.neuron.tp_degree
    if build.path == "medusa" and target is not None and not divides(degree, target.vocab_size):
        source = "NxDI models/llama/modeling_llama.py init_model (medusa_head_cls without pad)"
        yield _vocabulary("target", target, degree, "Medusa projections are", source)


def _vocabulary(role: str, config: ModelConfig, degree: int, what: str, source: str) -> Finding:
    return error(
        f"{role}-vocabulary-tp",
        f"vocab_size {config.vocab_size} of the {role} is no multiple of the TP degree {degree}, "
        f"and {what} not padded",
        f"choose a TP degree that divides {config.vocab_size}",
        source,
    )


def check_tree_vocabulary(build: NeuronBuild) -> Iterator[Finding]:
    """The token-tree path does not mask the rows that pad an LM head."""
    target = build.target
    if build.path != "eagle-tree" or target is None:
        return
    for degree in sorted({build.neuron.tp_degree, build.draft_tp_degree}):
        if not divides(degree, target.vocab_size):
            yield error(
                "tree-vocabulary-tp",
                f"vocab_size {target.vocab_size} is no multiple of the TP degree {degree}: the "
                "rows that pad the LM head are not masked in token trees and can win",
                f"choose a TP degree that divides {target.vocab_size}, or draft a chain",
                "NxDI models/model_base.py _eagle_token_tree_forward",
            )


def check_embedding(build: NeuronBuild) -> Iterator[Finding]:
    """An embedding whose columns are not padded."""
    for role, config, degree, family in _families(build):
        if not family.pads_embedding and not divides(degree, config.hidden_size):
            yield error(
                f"{role}-hidden-tp",
                f"hidden_size {config.hidden_size} of the {role} is no multiple of the TP degree "
                f"{degree}, and the embedding is not padded",
                f"choose a TP degree that divides {config.hidden_size}",
                family.source,
            )


def check_sequence_parallel(build: NeuronBuild) -> Iterator[Finding]:
    """Sequence parallelism splits every prompt graph among the cores; EAGLE-3 needs it."""
    if not build.settings["sequence_parallel_enabled"]:
        return
    degree = build.neuron.tp_degree
    odd = tuple(length for length in build.context_buckets if not divides(degree, length))
    if odd:
        yield error(
            "sequence-parallel",
            f"prompt graphs of {listed(odd)} positions are no multiples of the TP degree {degree}, "
            "among whose cores sequence parallelism splits them",
            f"choose neuron.context_encoding_buckets that are multiples of {degree}",
            "NxDI models/model_base.py validate_sequence_parallel (assertion)",
        )


def check_eagle3_sequence_parallel(build: NeuronBuild) -> Iterator[Finding]:
    """Without it, context encoding of EAGLE-3 fails."""
    if build.path == "eagle3" and not build.settings["sequence_parallel_enabled"]:
        yield error(
            "eagle3-sequence-parallel",
            "neuron.config.sequence_parallel_enabled is false: context encoding of an EAGLE-3 "
            "target fails without it",
            "leave sequence_parallel_enabled out",
            "NxDI 0.9.0 recorded on a CPU: RuntimeError",
        )


def check_host_memory(build: NeuronBuild) -> Iterator[Finding]:
    """Weights that are sharded on load pass through the host's memory whole."""
    instance, target = build.instance, build.target
    if instance is None or instance.host_gib is None or target is None:
        return
    needed = stored_bytes(target, build.spec.target.dtype) / GIB
    if needed > instance.host_gib and not build.neuron.save_sharded_checkpoint:
        yield warning(
            "host-memory",
            f"the target's weights, {needed:.0f} GiB, are sharded while loading; {instance.name} "
            f"has {instance.host_gib} GiB of host memory",
            "set neuron.save_sharded_checkpoint to true and compile on a machine with more memory",
            "NxDI models/application_base.py (shard on load)",
        )


def _decoders(build: NeuronBuild) -> Iterator[tuple[str, ModelConfig, int]]:
    if build.target is not None:
        yield "target", build.target, build.neuron.tp_degree
    if build.has_draft_model and build.draft is not None and build.draft.num_attention_heads:
        yield "draft", build.draft, build.draft_tp_degree


def _families(build: NeuronBuild) -> Iterator[tuple[str, ModelConfig, int, FamilySupport]]:
    families = {"target": build.family, "draft": build.draft_family}
    for role, config, degree in _decoders(build):
        if (family := families[role]) is not None:
            yield role, config, degree, family


CONSTRAINTS: tuple[Constraint, ...] = (
    check_tp_degree,
    check_draft_tp_degree,
    check_heads,
    check_vocabulary,
    check_tree_vocabulary,
    check_embedding,
    check_sequence_parallel,
    check_eagle3_sequence_parallel,
    check_host_memory,
)
