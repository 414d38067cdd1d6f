"""A loaded artifact as a `Speculator`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuron_spec.backends.base import Limits, Speculator
from neuron_spec.backends.decisions import Decisions
from neuron_spec.backends.neuron.config import NxdiConfig
from neuron_spec.backends.neuron.objects import Applications
from neuron_spec.backends.neuron.running.calls import Device
from neuron_spec.backends.neuron.running.device import (
    DeviceSpeculator,
    FusedGraph,
    Graph,
    SamplingGraph,
)
from neuron_spec.backends.neuron.running.draft import DraftModelDrafter
from neuron_spec.backends.neuron.running.host import HostSpeculator, LogitsModel
from neuron_spec.backends.neuron.running.medusa import MedusaSpeculator
from neuron_spec.backends.neuron.running.sampler import SAMPLING_OPTIONS, DeviceSampler
from neuron_spec.drafters import Drafter
from neuron_spec.drafters.lookup import LOOKUP_DRAFTERS
from neuron_spec.spec.graphs import tree_of
from neuron_spec.spec.schema import BuildSpec

_DEFAULT_TOP_K = 256  # OnDeviceSamplingConfig's global_topk


def speculator_of(
    spec: BuildSpec, config: NxdiConfig, applications: Applications, *, vocab_size: int
) -> Speculator:
    """The speculator of loaded applications: who drafts and who verifies follows from `config`.

    Args:
        config: what the applications were made of.
        vocab_size: of the target.
    """
    target = _device(config, applications.target, "target")
    limits = replace(Limits.of(spec), vocab_size=vocab_size)
    if "is_medusa" in config.neuron_config:
        heads = config.neuron_config["num_medusa_heads"].value
        limits = replace(limits, sampling_options=SAMPLING_OPTIONS, always_drafts=True)
        return MedusaSpeculator(target, tree=tree_of(spec), num_heads=heads, limits=limits)
    if config.sampling is not None:
        return _on_device(spec, config, target, limits)
    decisions = Decisions(
        spec.verification.rule,
        spec.verification.parameters,
        draws_drafts=spec.draft.sampled,
        vocab_size=vocab_size,
    )
    drafter = _drafter(spec, config, applications)
    limits = replace(limits, has_logprobs=True, has_grammars=True)
    return HostSpeculator(
        LogitsModel(target, vocab_size=vocab_size), drafter, decisions, limits=limits
    )


def _on_device(
    spec: BuildSpec, config: NxdiConfig, target: Device, limits: Limits
) -> DeviceSpeculator:
    assert config.sampling is not None
    draws = bool(config.sampling["do_sample"].value)
    top_k = config.sampling["global_topk"].value if "global_topk" in config.sampling else None
    sampler = DeviceSampler(draws=draws, global_topk=top_k or _DEFAULT_TOP_K)
    graph: Graph = SamplingGraph()
    if config.is_fused:
        pad_token_id = getattr(target.application.config, "pad_token_id", None) or 0
        graph = FusedGraph(tree_of(spec), draws=draws, pad_token_id=pad_token_id)
    limits = replace(
        limits,
        sampling_options=SAMPLING_OPTIONS,
        max_top_k=sampler.global_topk if draws else None,
        always_drafts=config.is_fused,
    )
    return DeviceSpeculator(target, graph, sampler=sampler, limits=limits)


def _drafter(spec: BuildSpec, config: NxdiConfig, applications: Applications) -> Drafter | None:
    if applications.draft is not None:
        device = _device(config, applications.draft, "draft")
        vocab_size = int(applications.draft.config.get_text_config().vocab_size)
        return DraftModelDrafter(LogitsModel(device, vocab_size=vocab_size))
    maker = LOOKUP_DRAFTERS.get(spec.draft.method)
    return maker(spec.draft) if maker else None


def _device(config: NxdiConfig, application: Any, role: str) -> Device:
    """Lengths are those that it was compiled for, whatever a spec would be rendered to today."""
    settings = {name: setting.value for name, setting in config.neuron_config.items()}
    prompt_graphs = settings.get("context_encoding_buckets") or [settings["max_context_length"]]
    lengths = (settings.get(name) for name in ("medusa_speculation_length", "speculation_length"))
    return Device(
        application,
        role,
        longest_prompt=prompt_graphs[-1],
        num_positions=settings["seq_len"],
        step_length=1 if role == "draft" else next(filter(None, lengths), 1),
    )
