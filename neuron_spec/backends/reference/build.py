"""Building and opening artifacts of the reference backend (CPU or CUDA, eager)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from neuron_spec.artifacts import Artifact
from neuron_spec.backends.base import Limits
from neuron_spec.backends.reference.models import HEADS, Placement, Target
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.checkpoints.prepare import PreparedCheckpoint
from neuron_spec.drafters import MODEL_DRAFTERS, Drafter, NgramDrafter
from neuron_spec.errors import BackendError, UserError
from neuron_spec.rules import RULES
from neuron_spec.spec.schema import BuildSpec

PROGRAM = "program.json"
_SMOKE_PROMPT = (1,)


class ReferenceBackend:
    """See `neuron_spec.backends.base.Backend`."""

    name = "reference"

    def libraries(self) -> dict[str, str]:
        """PyTorch decides what is computed here."""
        return {"torch": torch.__version__}

    def build(self, spec: BuildSpec, prepared: PreparedCheckpoint, folder: Path) -> dict[str, Any]:
        """Load the models, run a prefill and a step, and write `program.json`."""
        speculator = open_speculator(spec, prepared.target, prepared.draft)
        smoke = _smoke(speculator)
        program = {
            "graphs": "eager",
            "device": spec.reference.device,
            "dtype": spec.reference.dtype,
            "cache_length": cache_length(spec),
            "smoke": smoke,
        }
        (folder / PROGRAM).write_text(json.dumps(program, indent=2) + "\n", encoding="utf-8")
        return program

    def open(self, artifact: Artifact) -> ReferenceSpeculator:
        """Load the weights that the artifact links to."""
        draft = artifact.model_directory("draft") if "draft" in artifact.manifest.models else None
        return open_speculator(artifact.spec, artifact.model_directory("target"), draft)


BACKEND = ReferenceBackend()


def open_speculator(
    spec: BuildSpec, target_directory: Path, draft_directory: Path | None
) -> ReferenceSpeculator:
    """Load target and draft and join them with the spec's drafter and rule.

    Raises:
        UserError: CUDA is asked for and there is none.
        CheckpointError: weights that do not load.
    """
    placement = _placement(spec)
    drafter: Drafter | None = None
    taps: tuple[int, ...] = ()
    if draft_directory is not None:
        kind = HEADS[spec.draft.method]
        taps = kind.taps(read_config(target_directory).num_hidden_layers)
        head = kind.load(draft_directory, placement)
        drafter = MODEL_DRAFTERS[spec.draft.method](head.forward, head.logits)
    elif spec.speculates:
        sizes = spec.draft.ngram_sizes
        drafter = NgramDrafter(min_size=sizes[0], max_size=sizes[1])
    target = Target(target_directory, placement, taps=taps)
    return ReferenceSpeculator(
        target,
        drafter,
        RULES[spec.verification.rule],
        limits=limits_of(spec),
        device=placement.device,
    )


def limits_of(spec: BuildSpec) -> Limits:
    """The spec's shape as limits."""
    return Limits(
        batch_size=spec.shape.batch_size,
        max_prompt_tokens=spec.shape.max_prompt_tokens,
        max_total_tokens=spec.shape.max_total_tokens,
        num_draft_tokens=spec.num_draft_tokens,
    )


def cache_length(spec: BuildSpec) -> int:
    """Positions of the KV cache: a step looks k + 1 ahead, and so may a padded draft row."""
    return spec.shape.max_total_tokens + 2 * (spec.num_draft_tokens + 1)


def _placement(spec: BuildSpec) -> Placement:
    if spec.reference.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "no CUDA device is available",
            where="reference.device",
            found="cuda",
            mend="set reference.device to 'cpu'",
        )
    if spec.reference.num_threads is not None:
        torch.set_num_threads(spec.reference.num_threads)
    return Placement(
        num_slots=spec.shape.batch_size,
        length=cache_length(spec),
        dtype=getattr(torch, spec.reference.dtype),
        device=torch.device(spec.reference.device),
    )


def _smoke(speculator: ReferenceSpeculator) -> dict[str, Any]:
    """One prefill and one step: what cannot run fails at compile time, not in front of users."""
    first = speculator.prefill(0, _SMOKE_PROMPT)
    if first.logits is not None and not bool(first.logits.isfinite().all()):
        raise BackendError("the target's logits are not finite; are its weights damaged?")
    result = speculator.step(speculator.limits.num_draft_tokens)[0]
    speculator.release(0)
    return {"prompt": list(_SMOKE_PROMPT), "tokens": [first.token, *result.tokens]}
