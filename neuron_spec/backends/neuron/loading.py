"""Loading a compiled artifact: what has to agree first, then NxDI's own `load`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from neuron_spec.backends.neuron.config import NxdiConfig
from neuron_spec.backends.neuron.environment import device_variables
from neuron_spec.backends.neuron.leftovers import forget_others
from neuron_spec.backends.neuron.objects import Applications, compiled_folder
from neuron_spec.errors import ArtifactError, BackendError, shown
from neuron_spec.preflight.machine.variables import COMPILES, RUNS
from neuron_spec.preflight.neuron.runner import NO_TOP_K, UNREAD

_MAX_MESSAGE = 400


def runtime_variables(config: NxdiConfig, instance: str) -> dict[str, str]:
    """What the runtime has to find: what the graphs were compiled with, and the size of a logical
    core under the runtime's own name for it."""
    variables = device_variables(config, instance)
    return {**variables, RUNS: variables[COMPILES]}


def set_environment(
    variables: Mapping[str, str], environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set what is not set. Before NxDI is imported: runtime and NxDI read it once.

    Raises:
        ArtifactError: something is set otherwise.
    """
    for name, value in variables.items():
        found = environment.setdefault(name, value)
        if found != value:
            raise ArtifactError(
                "the environment is not that of the compile",
                where=name,
                found=found,
                expected=value,
                mend=f"unset {name}, or compile again for {found}",
            )


def check_runnable(config: NxdiConfig) -> None:
    """Whether the runner can read what the graphs give; `check` says it before a compile.

    Raises:
        ArtifactError: a setting that it cannot; all are named.
    """
    faults = list(_faults(config))
    if faults:
        raise ArtifactError(
            "\n  ".join(["cannot be run here", *faults]),
            where="neuron",
            mend="leave these out of the spec, and compile again",
        )


def _faults(config: NxdiConfig) -> Iterator[str]:
    for name, reason in UNREAD.items():
        if name in config.neuron_config and config.neuron_config[name].value:
            yield f"neuron.config.{name}: {reason}"
    top_k = (config.sampling or {}).get("global_topk")
    if top_k is not None and top_k.value < 1:
        yield f"neuron.sampling.global_topk {top_k.value}: {NO_TOP_K}"


def load_applications(applications: Applications, artifact: Path) -> None:
    """Load graphs and weights, and run every graph once (NxDI's warm-up).

    Args:
        artifact: its folder.

    Raises:
        BackendError: NxDI or the runtime fails.
    """
    for role, application in applications.by_role.items():
        forget_others(application)
        try:
            application.load(str(compiled_folder(artifact, role)))
        except Exception as error:
            reason = shown(str(error), _MAX_MESSAGE)
            raise BackendError(
                f"NxD Inference could not load the {role}: {type(error).__name__} {reason}"
            ) from error
