"""An artifact's graphs on the device, as a `Speculator`."""

from __future__ import annotations

from neuron_spec.artifacts import Artifact
from neuron_spec.backends.base import Speculator
from neuron_spec.backends.neuron.loading import (
    check_runnable,
    load_applications,
    runtime_variables,
    set_environment,
)
from neuron_spec.backends.neuron.objects import make_application, require_packages
from neuron_spec.backends.neuron.recorded import recorded_config
from neuron_spec.backends.neuron.run import speculator_of
from neuron_spec.checkpoints.model_config import read_raw_config
from neuron_spec.errors import ArtifactError, BackendError, DependencyError


def open_speculator(artifact: Artifact) -> Speculator:
    """Make the applications anew, load what was compiled, and join them.

    Raises:
        ArtifactError: not of this backend, or not to be run here.
        DependencyError: the Neuron packages are not here.
        BackendError: NxDI or the runtime fails.
    """
    record = artifact.manifest.neuron
    if record is None:
        raise ArtifactError("nothing in it was compiled for Neuron", where=artifact.directory)
    require_packages()
    config = recorded_config(record.config)
    check_runnable(config)
    set_environment(runtime_variables(config, record.instance))
    target = artifact.model_directory("target")
    has_draft = "draft" in artifact.manifest.models
    draft = artifact.model_directory("draft") if has_draft else None
    try:
        applications = make_application(config, target, draft)
    except ImportError as error:
        raise DependencyError(f"NxD Inference does not import: {error}") from error
    except Exception as error:
        words = str(error) or type(error).__name__
        raise BackendError(f"NxD Inference refuses what it compiled: {words}") from error
    load_applications(applications, artifact.directory)
    vocab_size = read_raw_config(target)["vocab_size"]
    return speculator_of(artifact.spec, config, applications, vocab_size=vocab_size)
