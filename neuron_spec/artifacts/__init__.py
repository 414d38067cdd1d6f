"""What was built: the manifest's schema, and writing and opening artifacts."""

from neuron_spec.artifacts.changes import changes
from neuron_spec.artifacts.compatibility import compatibility_of, shared_by_pools
from neuron_spec.artifacts.manifest import (
    Ingredients,
    Manifest,
    ModelRecord,
    NeuronRecord,
    PinnedShapesRecord,
    fingerprint_of,
)
from neuron_spec.artifacts.store import (
    Artifact,
    installed_version,
    open_artifact,
    read_manifest,
    write_manifest,
)

__all__ = [
    "Artifact",
    "Ingredients",
    "Manifest",
    "ModelRecord",
    "NeuronRecord",
    "PinnedShapesRecord",
    "changes",
    "compatibility_of",
    "fingerprint_of",
    "installed_version",
    "open_artifact",
    "read_manifest",
    "shared_by_pools",
    "write_manifest",
]
