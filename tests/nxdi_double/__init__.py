"""NxDI without Neuron: modules of its names, with its exact signatures, that record their calls.

`contract.json` holds the signatures as recorded out of NxDI's source (`record.py`); a test compares
the double with it.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from nxdi_double import application, config
from nxdi_double.recorder import Call, Current, Recorder

__all__ = ["CONTRACT", "VERSIONS", "Call", "Recorder", "install"]

CONTRACT: dict[str, Any] = json.loads((Path(__file__).parent / "contract.json").read_text())
# Packages as pip would have installed them; of one SDK release, the one the contract is of.
VERSIONS = {
    "neuronx-distributed-inference": "0.9.17334",
    "neuronx-distributed": "0.18.27753",
    "torch-neuronx": "2.9.0.2.13.26312",
    "neuronx-cc": "2.24.5133.0",
}
_PACKAGE = "neuronx_distributed_inference"
_NXD = (
    "neuronx_distributed",
    "neuronx_distributed.parallel_layers",
    "neuronx_distributed.parallel_layers.parallel_state",
)
_BASES = {
    "models.config": config,
    "models.application_base": application,
    "models.model_base": application,
    "utils.hf_adapter": config,
}


def install(patch: pytest.MonkeyPatch, site: Path, versions: dict[str, str] = VERSIONS) -> Recorder:
    """Put the double's modules where imports find them, and package metadata into `site`."""
    recorder = Recorder()
    patch.setattr(Current, "recorder", recorder)
    for name, module in {**_modules(), **_family_modules()}.items():
        patch.setitem(sys.modules, name, module)
    for name, version in versions.items():
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n"
        )
    patch.syspath_prepend(site)
    return recorder


def _modules() -> dict[str, types.ModuleType]:
    found = {name: types.ModuleType(name) for name in (_PACKAGE, *_NXD)}
    for part in ("models", "utils"):
        found[f"{_PACKAGE}.{part}"] = types.ModuleType(f"{_PACKAGE}.{part}")
    for part, source in _BASES.items():
        name = f"{_PACKAGE}.{part}"
        found[name] = types.ModuleType(name)
        vars(found[name]).update({k: v for k, v in vars(source).items() if not k.startswith("_")})
    vars(found[_NXD[-1]]).update(_SPECULATIVE_DRAFT_GROUP=None, _SPECULATIVE_DRAFT_GROUP_SIZE=None)
    return found


def _family_modules() -> dict[str, types.ModuleType]:
    found: dict[str, types.ModuleType] = {}
    for key, names in CONTRACT["families"].items():
        name, _, causal_lm = key.partition(":")
        module = found.setdefault(name, types.ModuleType(name))
        for label, value in _family(name, causal_lm, names).items():
            setattr(module, label, value)
    return found


def _family(module: str, causal_lm: str, names: dict[str, str]) -> dict[str, Any]:
    neuron_config = getattr(config, names["neuron_config"], None) or _class(
        module, names["neuron_config"], config.NeuronConfig
    )
    inference_config = _class(
        module, names["config"], config.InferenceConfig,
        get_neuron_config_cls=classmethod(lambda cls: neuron_config),
    )  # fmt: skip
    model = _class(module, names["model"], object)
    application_class = _class(
        module, causal_lm, application.NeuronBaseForCausalLM,
        _model_cls=model, get_config_cls=classmethod(lambda cls: inference_config),
    )  # fmt: skip
    made = (neuron_config, inference_config, model, application_class)
    return {item.__name__: item for item in made}


def _class(module: str, name: str, base: type, **members: Any) -> type:
    return type(name, (base,), {"__module__": module, **members})
