"""Speculative decoding for AWS Trainium and Inferentia: prepare, check, compile, serve, verify.

    from neuron_spec import compile_model, load, load_spec, prepare
    spec = load_spec("compile/smollm2-135m-eagle.cpu.toml")
    artifact = compile_model(spec, prepare(spec))
    print(load(artifact.directory).generate("The capital of France is", max_new_tokens=8).text)

Importing this package is cheap: each name is imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuron_spec.artifacts import Artifact
    from neuron_spec.checkpoints import PreparedCheckpoint, identify, prepare
    from neuron_spec.compiler import compile_model
    from neuron_spec.engine import Generation, Session, load
    from neuron_spec.errors import NeuronSpecError, UserError
    from neuron_spec.preflight import Finding, check
    from neuron_spec.spec import BuildSpec, claims_of, load_spec
    from neuron_spec.version import __version__

_HOMES = {
    "Artifact": "artifacts",
    "BuildSpec": "spec",
    "Finding": "preflight",
    "Generation": "engine",
    "NeuronSpecError": "errors",
    "PreparedCheckpoint": "checkpoints",
    "Session": "engine",
    "UserError": "errors",
    "__version__": "version",
    "check": "preflight",
    "claims_of": "spec",
    "compile_model": "compiler",
    "identify": "checkpoints",
    "load": "engine",
    "load_spec": "spec",
    "prepare": "checkpoints",
}

__all__ = [
    "Artifact",
    "BuildSpec",
    "Finding",
    "Generation",
    "NeuronSpecError",
    "PreparedCheckpoint",
    "Session",
    "UserError",
    "__version__",
    "check",
    "claims_of",
    "compile_model",
    "identify",
    "load",
    "load_spec",
    "prepare",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'neuron_spec' has no attribute {name!r}")
    return getattr(import_module(f"neuron_spec.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
