"""Building and opening artifacts of the reference backend (CPU or CUDA).

PyTorch is imported when something is loaded: what a build would do is told without it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neuron_spec.artifacts import Artifact, installed_version
from neuron_spec.backends.base import Speculator
from neuron_spec.backends.builds import BuildPreview
from neuron_spec.backends.reference.native.pages import LargePages
from neuron_spec.backends.reference.native.sizes import packed_bytes
from neuron_spec.checkpoints.prepare import PreparedCheckpoint
from neuron_spec.errors import BackendError
from neuron_spec.files import Progress
from neuron_spec.spec.schema import BuildSpec

PROGRAM = "program.json"
_SMOKE_PROMPT = (1,)


class ReferenceBackend:
    """See `neuron_spec.backends.builds.Backend`."""

    name = "reference"

    def libraries(self) -> dict[str, str]:
        """PyTorch decides what is computed here. The version of its package, which is what an
        artifact is opened by: `torch.__version__` may have a suffix that the package lacks."""
        version = installed_version("torch")
        return {"torch": version} if version else {}

    def require(self) -> None:
        """PyTorch is a dependency of this package."""

    def environment(self) -> dict[str, str]:
        """Nothing is compiled."""
        return {}

    def preview(self, spec: BuildSpec, destination: Path) -> BuildPreview:
        """See `build`."""
        from neuron_spec.backends.reference.native.choice import is_to_compile

        kernels = ("compile kernels, once a machine",) if is_to_compile(spec) else ()
        models = "target and draft" if spec.draft.model else "target"
        check = ("compare logits of pinned shapes",) if spec.verification.pin_shapes else ()
        phases = (
            *kernels,
            f"load {models}",
            "one prefill and one step",
            *check,
            f"write {PROGRAM}",
        )
        return BuildPreview(phases)

    def build(
        self,
        spec: BuildSpec,
        prepared: PreparedCheckpoint,
        folder: Path,
        *,
        destination: Path,
        progress: Progress,
    ) -> dict[str, Any]:
        """Load the models, run a prefill and a step, and write `program.json`."""
        from neuron_spec.backends.reference.native.choice import native_of
        from neuron_spec.backends.reference.opening import (
            cache_length,
            check_pinned,
            open_speculator,
        )

        speculator = open_speculator(spec, prepared.target, prepared.draft)
        smoke = _smoke(speculator)
        native = native_of(spec)
        program = {
            "graphs": "compiled kernels" if native else "eager",
            "kernels": native.kernels.path.stem if native else None,
            "device": spec.reference.device,
            "dtype": spec.reference.dtype,
            "cache_length": cache_length(spec),
            "smoke": smoke,
            **check_pinned(spec, speculator),
        }
        (folder / PROGRAM).write_text(json.dumps(program, indent=2) + "\n", encoding="utf-8")
        return program

    def open(self, artifact: Artifact) -> Speculator:
        """Load the weights that the artifact links to; see `open_built`."""
        models = {role: artifact.model_directory(role) for role in artifact.manifest.models}
        pages = LargePages()
        pages.make_ready(packed_bytes(artifact.spec, models["target"], models.get("draft")))
        from neuron_spec.backends.reference.opening import open_built

        return open_built(artifact, pages)


BACKEND = ReferenceBackend()


def _smoke(speculator: Speculator) -> dict[str, Any]:
    """One prefill and one step: what cannot run fails at compile time, not in front of users."""
    first = speculator.prefill(0, _SMOKE_PROMPT)
    if first.logits is not None and not bool(first.logits.isfinite().all()):
        raise BackendError("the target's logits are not finite; are its weights damaged?")
    result = speculator.step(speculator.limits.num_draft_tokens)[0]
    speculator.release(0)
    return {"prompt": list(_SMOKE_PROMPT), "tokens": [first.token, *result.tokens]}
