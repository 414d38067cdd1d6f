"""What was built: the manifest's schema, and writing and opening artifacts."""

from neuron_spec.artifacts.manifest import Manifest, ModelRecord, fingerprint_of
from neuron_spec.artifacts.store import Artifact, open_artifact, write_manifest

__all__ = [
    "Artifact",
    "Manifest",
    "ModelRecord",
    "fingerprint_of",
    "open_artifact",
    "write_manifest",
]
