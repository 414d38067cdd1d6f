"""Rotary positions: which of the published settings does NxDI compute?

NxDI's Llama class, which computes every draft head too, has its own code for no scaling and for
`llama3`; for every other kind it takes transformers' module, whose `dynamic` and `longrope` kinds
branch on the data and whose precision NxDI's own comment calls into question. NxDI's Mistral, Qwen2
and Qwen3 classes never read `rope_scaling`. NxDI 0.9 pins transformers 4.57, which does not know
`rope_parameters`, the form that transformers 5 writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.checkpoints.contradictions.base import Contradiction
from neuron_spec.checkpoints.formats.hf import SUPPORTED_ROPE_SCALINGS
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.model_config import DEFAULT_ROPE_THETA, ModelConfig
from neuron_spec.errors import shown

_LLAMA = "NxDI models/llama/modeling_llama.py get_rope"
_UNSCALED_TYPES = ("mistral", "qwen2", "qwen3")  # NxDI models/<type>/modeling_<type>.py


def of_head(draft: Identity) -> Iterator[Contradiction]:
    """A kind of scaling that a prepared head would not be computed with."""
    kind = draft.config.rope_kind
    yield from _two_thetas(draft.config)
    yield from _linear(draft.config)
    if kind not in SUPPORTED_ROPE_SCALINGS:
        yield Contradiction(
            "rope-scaling",
            "error",
            f"rope_scaling in config.json is of kind {shown(kind)}: NxDI's Llama class has no code "
            "of its own for it, nor has the reference backend",
            f"use a draft whose rope_scaling is one of {', '.join(SUPPORTED_ROPE_SCALINGS)}",
            _LLAMA,
        )


def of_model(model: Identity) -> Iterator[Contradiction]:
    """Settings of a language model that NxDI would not read."""
    config, kind = model.config, model.config.rope_kind
    if kind not in SUPPORTED_ROPE_SCALINGS:
        return  # an error of its own
    yield from _two_thetas(config)
    if config.model_type in _UNSCALED_TYPES and kind != "default":
        yield Contradiction(
            "rope-scaling-unread",
            "warning",
            f"config.json has a rope_scaling of kind '{kind}', which NxDI's {config.model_type} "
            "class does not read: on Neuron positions would be unscaled",
            "compile for Neuron without rope_scaling and within the unscaled context, or use a "
            "Llama model",
            f"NxDI models/{config.model_type}/modeling_{config.model_type}.py",
        )
    else:
        yield from _linear(config)
    if _only_in_new_form(config):
        yield Contradiction(
            "rope-parameters",
            "warning",
            f"config.json says in rope_parameters alone: rope_theta {config.rope_theta:g}, kind "
            f"'{kind}'; transformers 4.57, which NxDI 0.9 uses, does not read it and would take "
            f"{DEFAULT_ROPE_THETA:g} and no scaling for what rope_theta and rope_scaling leave out",
            "write rope_theta and rope_scaling beside rope_parameters in a copy of config.json",
            "transformers 4.57 LlamaConfig",
        )


def _only_in_new_form(config: ModelConfig) -> bool:
    """Whether transformers 4 would miss a theta or a scaling that it does not take by default."""
    if not config.raw.get("rope_parameters"):
        return False
    misses_theta = config.raw.get("rope_theta") is None and config.rope_theta != DEFAULT_ROPE_THETA
    misses_scaling = not config.raw.get("rope_scaling") and config.rope_kind != "default"
    return misses_theta or misses_scaling


def _two_thetas(config: ModelConfig) -> Iterator[Contradiction]:
    old, new = config.raw.get("rope_theta"), config.raw.get("rope_parameters") or {}
    other = new.get("rope_theta")
    if old is not None and other is not None and old != other:
        yield Contradiction(
            "two-rope-thetas",
            "error",
            f"config.json says rope_theta: {old:g} and rope_parameters.rope_theta: {other:g}; "
            "transformers 4 (and NxDI 0.9) would read the first, transformers 5 the second",
            "keep the one that the model was trained with, in a copy of config.json",
            "transformers 4.57 and 5 LlamaConfig",
        )


def _linear(config: ModelConfig) -> Iterator[Contradiction]:
    if config.rope_kind == "linear":
        yield Contradiction(
            "rope-scaling-linear",
            "warning",
            "rope_scaling in config.json is of kind 'linear': NxDI computes it with transformers' "
            "module, about whose precision on Neuron its code warns",
            "compare the output on Neuron with the reference backend's",
            _LLAMA,
        )
