"""A configuration out of the manifest: an artifact runs with what it was compiled with, whatever a
later version of this package would render, and without the checkpoints' weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuron_spec.backends.neuron.config import DraftModel, NxdiConfig
from neuron_spec.backends.neuron.families import CLASSES, ModelClasses
from neuron_spec.backends.neuron.settings import Setting, Settings
from neuron_spec.errors import ArtifactError

_SAMPLING = "on_device_sampling_config"
_RECOMPILE = "compile again: neuron-spec compile SPEC --backend neuron"


def recorded_config(recorded: Mapping[str, Any]) -> NxdiConfig:
    """What `NxdiConfig.as_dict` was made of.

    Raises:
        ArtifactError: a class that this version does not know, or something is missing.
    """
    try:
        settings = _settings(recorded["neuron_config"])
        sampling = settings.pop(_SAMPLING, None)
        return NxdiConfig(
            _classes(recorded["model_class"]),
            settings,
            None if sampling is None else _settings(sampling.value),
            _draft(recorded["draft"]),
            recorded["fused_spec_config"] is not None,
            tuple(recorded["assumptions"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"the recorded configuration lacks {error}", where="manifest.json", mend=_RECOMPILE
        ) from error


def _settings(values: Mapping[str, Any]) -> Settings:
    return {name: Setting(value) for name, value in values.items()}


def _draft(recorded: Mapping[str, Any] | None) -> DraftModel | None:
    if recorded is None:
        return None
    changes = _settings(recorded["neuron_config_changes"])
    return DraftModel(_classes(recorded["model_class"]), recorded["path"], changes)


def _classes(reference: Mapping[str, str]) -> ModelClasses:
    wanted = (reference["__module__"], reference["__name__"])
    found = (c for c in CLASSES.values() if (c.module, c.causal_lm) == wanted)
    if (classes := next(found, None)) is None:
        raise ArtifactError(
            "no class of NxD Inference that is known here",
            where="manifest.json",
            found=".".join(wanted),
            mend=_RECOMPILE,
        )
    return classes
