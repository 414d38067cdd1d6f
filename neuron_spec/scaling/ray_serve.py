"""Ray Serve around an artifact: the application for `serve deploy`, and a run from here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from neuron_spec.artifacts import open_artifact
from neuron_spec.errors import DependencyError
from neuron_spec.scaling.settings import ScaleOut, deployment_options, read_settings

_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no statistics to Ray's makers
    "RAY_worker_niceness": "0",  # Ray's 15 is for batch work: any other program would go first
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # hides no GPU from a replica that asks for none
}
"""Set where nobody has set otherwise."""


def import_ray() -> tuple[Any, Any]:
    """`ray` and `ray.serve`.

    Raises:
        DependencyError: they are not installed.
    """
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise DependencyError(
            "not installed", where=error.name, mend="pip install 'neuron-spec[ray]'"
        ) from error
    return ray, serve


def application(args: Mapping[str, Any]) -> Any:
    """The Serve application of one artifact; `import_path` of a config file names this function.

    Deploying it again with other arguments replaces one replica after the other.

    Args:
        args: the fields of `ScaleOut`.

    Raises:
        UserError: the arguments do not fit, or the artifact does not open.
        DependencyError: Ray is missing.
    """
    return bound(read_settings(args))


def bound(settings: ScaleOut) -> Any:
    """The same of settings that were read."""
    _, serve = import_ray()
    from neuron_spec.scaling.replica import Replica, ReplicaApp, load_app

    artifact = open_artifact(settings.artifact)
    options = deployment_options(settings, artifact.spec, artifact.manifest.backend)

    def build() -> ReplicaApp:  # is called in the replica's process: no model is ever pickled
        return ReplicaApp(load_app(settings))

    return serve.deployment(**options)(serve.ingress(build)(Replica)).bind()
