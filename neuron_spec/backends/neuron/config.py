"""Build spec -> the arguments of NxDI's configuration classes, every unusual one with its reason.

NxDI itself cannot be imported without the Neuron packages, not even to check a configuration
(`models/config.py` asks for the platform in its constructors), so that all of this is plain data:
`build` makes the objects out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neuron_spec.backends.neuron.choice import HEADS_OF_LLAMA, draft_choice, target_choice
from neuron_spec.backends.neuron.facts import NOTHING_KNOWN, CheckpointFacts
from neuron_spec.backends.neuron.families import LLAMA, ModelClasses
from neuron_spec.backends.neuron.lengths import length_faults, length_settings
from neuron_spec.backends.neuron.refusals import method_faults, speculation_faults
from neuron_spec.backends.neuron.settings import Setting, Settings, passed_through
from neuron_spec.backends.neuron.speculation import Speculation, speculation_of
from neuron_spec.errors import SpecError
from neuron_spec.platforms.nxdi_models import family_of
from neuron_spec.platforms.nxdi_pass_through import pass_through_faults
from neuron_spec.spec.graphs import Lengths, lengths_of, step_length
from neuron_spec.spec.neuron import NeuronSpec
from neuron_spec.spec.schema import BuildSpec


@dataclass(frozen=True)
class DraftModel:
    """The second model.

    Attributes:
        path: its prepared directory.
        changes: set on a copy of the target's NeuronConfig, attribute by attribute.
    """

    classes: ModelClasses
    path: str
    changes: Settings


@dataclass(frozen=True)
class NxdiConfig:
    """What NxDI is built with.

    Attributes:
        target: the target's classes.
        neuron_config: keyword arguments of NeuronConfig, but for the sampling.
        sampling: keyword arguments of OnDeviceSamplingConfig; None: logits leave the device.
        draft: the second model, if there is one.
        is_fused: whether it runs in the target's graph, by FusedSpecNeuronConfig.
        assumptions: what was taken for granted because a checkpoint is not here.
    """

    target: ModelClasses
    neuron_config: Settings
    sampling: Settings | None = None
    draft: DraftModel | None = None
    is_fused: bool = False
    assumptions: tuple[str, ...] = ()

    @property
    def neuron_arguments(self) -> dict[str, Any]:
        """For NeuronConfig(**arguments), which makes the sampling's object itself."""
        arguments = _values(self.neuron_config)
        if self.sampling is not None:
            arguments["on_device_sampling_config"] = _values(self.sampling)
        return arguments

    @property
    def fused_spec_arguments(self) -> dict[str, Any] | None:
        """For FusedSpecNeuronConfig beside the draft's config; classes as NxDI writes them."""
        if not self.is_fused or self.draft is None:
            return None
        is_other = self.draft.classes != self.target
        draft_cls = _reference(self.draft.classes, self.draft.classes.causal_lm)
        return {
            "worker_cls": _reference(self.target, self.target.model),
            "draft_model_cls": draft_cls if is_other else None,
            "draft_model_path": self.draft.path,
        }

    @property
    def reasons(self) -> dict[str, str]:
        """Keyword -> why it has its value, where that needs saying."""
        tables = {"": self.neuron_config, "on_device_sampling_config.": self.sampling or {}}
        if self.draft is not None:
            tables["draft."] = self.draft.changes
        return {
            prefix + name: setting.reason
            for prefix, table in tables.items()
            for name, setting in table.items()
            if setting.reason
        }

    @property
    def sections(self) -> list[tuple[str, Settings]]:
        """(title, settings) of everything, to be read by a person."""
        sections = [(f"{self.target.causal_lm}: NeuronConfig", self.neuron_config)]
        if self.sampling is not None:
            sections.append(("OnDeviceSamplingConfig", self.sampling))
        if self.draft is not None:
            title = f"draft {self.draft.classes.causal_lm}: set on a copy of the NeuronConfig"
            sections.append((title, self.draft.changes))
        if self.fused_spec_arguments is not None:
            arguments = {
                name: Setting(value["__name__"] if isinstance(value, dict) else value)
                for name, value in self.fused_spec_arguments.items()
            }
            sections.append(("FusedSpecNeuronConfig", arguments))
        return sections

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        draft = self.draft and {
            "model_class": _reference(self.draft.classes, self.draft.classes.causal_lm),
            "path": self.draft.path,
            "neuron_config_changes": _values(self.draft.changes),
        }
        return {
            "model_class": _reference(self.target, self.target.causal_lm),
            "neuron_config": self.neuron_arguments,
            "draft": draft,
            "fused_spec_config": self.fused_spec_arguments,
            "reasons": self.reasons,
            "assumptions": list(self.assumptions),
        }


def render(spec: BuildSpec, facts: CheckpointFacts = NOTHING_KNOWN) -> NxdiConfig:
    """The configuration of a spec.

    Args:
        facts: what is known of the checkpoints; the rest is assumed, and said so.

    Raises:
        SpecError: no [neuron] table, or NxDI cannot do what the spec says; all faults in one.
    """
    if spec.neuron is None:
        raise SpecError(
            "has no [neuron] table", where=spec.name, mend="add one with instance and tp_degree"
        )
    _raise(spec, list(method_faults(spec)))
    speculation, step = speculation_of(spec, facts), step_length(spec)
    lengths = lengths_of(spec, step)
    target, draft = target_choice(spec, facts), draft_choice(spec, facts)
    family = family_of(target.classes.family) if target.classes else None
    foreign = pass_through_faults(spec.neuron.tables, spec.neuron.sdk, family)
    _raise(
        spec,
        [
            *(fault for choice in (target, draft) for fault in choice.faults),
            *speculation_faults(spec, speculation, facts),
            *length_faults(spec, lengths, step),
            *_sequence_parallel_faults(spec, lengths, speculation),
            *(fault.message for fault in foreign),
            *_contradictions("config", spec.neuron.config, speculation.target),
            *_contradictions("draft_config", spec.neuron.draft_config, speculation.draft or {}),
        ],
    )
    assert target.classes is not None
    settings = {
        **_basics(spec),
        **length_settings(lengths),
        **passed_through(spec),
        **speculation.target,
    }
    return NxdiConfig(
        target.classes,
        settings,
        _sampling(spec, speculation),
        _draft_model(spec, facts, (target.classes, draft.classes), speculation),
        speculation.is_fused,
        (*target.assumptions, *draft.assumptions, *speculation.assumptions),
    )


def _values(settings: Settings) -> dict[str, Any]:
    return {name: setting.value for name, setting in settings.items()}


def _reference(classes: ModelClasses, name: str) -> dict[str, str]:
    return {"__module__": classes.module, "__name__": name}


def _raise(spec: BuildSpec, faults: list[str]) -> None:
    if faults:
        raise SpecError("\n  ".join(["not for NxD Inference", *faults]), where=spec.name)


def _contradictions(section: str, given: dict[str, Any], decided: Settings) -> Iterator[str]:
    for name in sorted(given.keys() & decided.keys()):
        setting = decided[name]
        if given[name] != setting.value:
            yield f"neuron.{section}.{name}: has to be {setting.value!r} here: {setting.reason}"


def _sequence_parallel_faults(
    spec: BuildSpec, lengths: Lengths, speculation: Speculation
) -> Iterator[str]:
    neuron, name = spec.neuron, "sequence_parallel_enabled"
    assert neuron is not None
    if not {**passed_through(spec), **speculation.target}.get(name, Setting(False)).value:
        return
    for bucket in lengths.prompt_graphs:
        if bucket % neuron.tp_degree:
            yield (
                f"{name}: a prompt graph of {bucket} positions cannot be shared by "
                f"{neuron.tp_degree} ranks (models/model_base.py); give other "
                "neuron.context_encoding_buckets"
            )


def _basics(spec: BuildSpec) -> Settings:
    neuron, batch_size = spec.neuron, spec.shape.batch_size
    assert neuron is not None
    settings = {
        "tp_degree": Setting(neuron.tp_degree),
        "logical_nc_config": _logical_nc_config(neuron),
        "torch_dtype": Setting(
            spec.target.dtype,
            "explicit, since NxDI would otherwise take the type out of each model's config.json "
            "(utils/hf_adapter.py)",
        ),
        "cast_type": Setting("config", "all weights in torch_dtype, the draft's too"),
        "batch_size": Setting(batch_size),
        "save_sharded_checkpoint": Setting(neuron.save_sharded_checkpoint),
    }
    if batch_size > 1:
        reason = "requests come and go one by one: a prompt is encoded alone, all decode together"
        settings |= {
            "is_continuous_batching": Setting(True, reason),
            "ctx_batch_size": Setting(1, reason),
            "tkg_batch_size": Setting(batch_size, reason),
        }
    return settings


def _logical_nc_config(neuron: NeuronSpec) -> Setting:
    if neuron.logical_nc_config is not None:
        return Setting(neuron.logical_nc_config)
    is_grouped = neuron.instance.startswith(("trn2", "trn3"))
    reason = "the platform's default, said outright: the machine that compiles may be another one"
    return Setting(2 if is_grouped else 1, reason)


def _sampling(spec: BuildSpec, speculation: Speculation) -> Settings | None:
    neuron, rule = spec.neuron, spec.verification.rule
    assert neuron is not None
    if not speculation.verifies_on_device and not neuron.sample_on_device:
        return None
    draws = rule != "greedy"
    dynamic = (
        "requests bring their own temperature, top-k and top-p"
        if draws
        else "true would sample a request's first token although the rest is greedy "
        "(modules/generation/sampling.py)"
    )
    return {
        "do_sample": Setting(draws, f"verification.rule '{rule}'"),
        "dynamic": Setting(draws, dynamic),
        **{name: Setting(value) for name, value in neuron.sampling.items()},
        **speculation.sampling,
    }


def _draft_model(
    spec: BuildSpec,
    facts: CheckpointFacts,
    classes: tuple[ModelClasses, ModelClasses | None],
    speculation: Speculation,
) -> DraftModel | None:
    neuron, (target, draft) = spec.neuron, classes
    assert neuron is not None
    if speculation.draft is None or draft is None:
        return None
    changes = {name: Setting(value) for name, value in neuron.draft_config.items()}
    changes |= speculation.draft
    if neuron.draft_tp_degree is not None:
        changes["tp_degree"] = Setting(neuron.draft_tp_degree)
    if "draft_model_modules_to_not_convert" in neuron.config:
        modules = neuron.config["draft_model_modules_to_not_convert"]
        changes["modules_to_not_convert"] = Setting(modules, "draft_model_modules_to_not_convert")
    if draft == LLAMA != target:
        changes["attn_cls"] = Setting(
            "NeuronLlamaAttention",
            "the copy names the target's attention, which NxDI's Llama layers do not know "
            "(models/llama/modeling_llama.py)",
        )
    is_head = spec.draft.method in HEADS_OF_LLAMA
    planned = str(spec.build_directory / "draft") if is_head else str(spec.draft.model)
    return DraftModel(draft, facts.draft.directory or planned, changes)
