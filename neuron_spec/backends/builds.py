"""The seam between the compiler and what builds and opens artifacts. Without torch: what a build
would do is told at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from neuron_spec.artifacts import Artifact
    from neuron_spec.backends.base import Speculator
    from neuron_spec.checkpoints import PreparedCheckpoint
    from neuron_spec.files import Progress
    from neuron_spec.spec import BuildSpec


@dataclass(frozen=True)
class BuildPreview:
    """What a build would do; all of it known without the backend's libraries.

    Attributes:
        phases: in order.
        graphs: what would be compiled, as `target context_encoding_model` -> its buckets, in
            tokens; empty where nothing is compiled.
        environment: variables that would be set.
        beside: files and folders beside the artifact that the build writes; what they are -> path.
    """

    phases: tuple[str, ...]
    graphs: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """How artifacts of one kind are built and opened."""

    name: str

    def require(self) -> None:
        """Do nothing where the backend's libraries are here.

        Raises:
            DependencyError: one is missing, too old, or a placeholder of the same name.
        """

    def libraries(self) -> dict[str, str]:
        """Versions that decide what is computed, of those that are here; part of the
        fingerprint."""

    def environment(self) -> dict[str, str]:
        """Variables that decide what is compiled, where they are set; part of the fingerprint."""

    def preview(self, spec: BuildSpec, destination: Path) -> BuildPreview:
        """What `build` would do; nothing is loaded, written or downloaded.

        Raises:
            SpecError: the backend cannot do what the spec says.
        """

    def build(
        self,
        spec: BuildSpec,
        prepared: PreparedCheckpoint,
        folder: Path,
        *,
        destination: Path,
        progress: Progress,
    ) -> dict[str, Any]:
        """Write what `open` needs into `folder` (empty, not yet an artifact).

        Args:
            destination: where the folder will be if the build succeeds; what must outlive a build
                that does not (a compiler's log) is written beside it.

        Returns:
            A report; of the Neuron backend, what `NeuronRecord` holds.
        """

    def open(self, artifact: Artifact) -> Speculator:
        """Load an artifact of this backend."""
