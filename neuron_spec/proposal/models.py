"""What the two directories are: read from headers, and named as the spec will name them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from neuron_spec.checkpoints.demo_target import SCHEME
from neuron_spec.checkpoints.formats import hydra, medusa
from neuron_spec.checkpoints.identify import Identity, identify, identify_target
from neuron_spec.checkpoints.source import resolve_model
from neuron_spec.errors import CheckpointError, UserError
from neuron_spec.files import Progress, no_progress

METHODS_WITHOUT_DRAFT = ("ngram", "suffix", "none")
_LANGUAGE_MODEL = "causal-lm"


@dataclass(frozen=True)
class Models:
    """Target and draft of a spec to be.

    Attributes:
        target_name, draft_name: what the spec calls them; None where there is no draft.
        method: the draft method that follows.
    """

    target: Identity
    target_name: str
    draft: Identity | None
    draft_name: str | None
    method: str

    @property
    def num_heads(self) -> int:
        """Medusa or Hydra heads in the draft's file; 0 for other drafts."""
        counts = {medusa.FAMILY: medusa.num_heads, hydra.FAMILY: hydra.num_heads}
        return counts[self.method](self.draft.shapes) if self.draft and self.method in counts else 0

    @property
    def positions(self) -> tuple[int, str]:
        """Positions that both were trained for, and whose they are; heads without a transformer
        of their own say nothing."""
        found = [(self.target.config.max_position_embeddings, "target")]
        if self.draft and self.draft.config.max_position_embeddings:
            found.append((self.draft.config.max_position_embeddings, "draft"))
        return min(found, key=lambda pair: pair[0])


def read_models(
    target: str,
    draft: str | None,
    *,
    method: str | None,
    folder: Path,
    progress: Progress = no_progress,
) -> Models:
    """Identify both; what a spec takes is taken here, relative to the current folder.

    Args:
        method: for a spec without a draft checkpoint; None: ngram.
        folder: of the spec, which relative paths are written relative to.

    Raises:
        CheckpointError: not found, damaged, or a target that is no language model.
        UserError: a method that contradicts the draft.
    """
    if draft is not None and method is not None:
        raise UserError(
            f"--method {method} drafts without a checkpoint, and DRAFT is given",
            mend="leave one of the two out; with DRAFT the method follows from its files",
        )
    read = identify_target(resolve_model(target, Path.cwd(), progress=progress))
    if read.family != _LANGUAGE_MODEL:
        raise CheckpointError(
            "is no language model",
            where=read.directory,
            found=f"a checkpoint of family {read.family}",
            expected="the target first, then its draft",
        )
    name = _name(target, folder)
    if draft is None:
        return Models(read, name, None, None, method or METHODS_WITHOUT_DRAFT[0])
    head = identify(resolve_model(draft, Path.cwd(), progress=progress))
    found = "model" if head.family == _LANGUAGE_MODEL else head.family
    return Models(read, name, head, _name(draft, folder), found)


def _name(model: str, folder: Path) -> str:
    """A path as seen from the spec's folder, and never mistaken for a hub id; others as given."""
    path = Path(model).expanduser()
    if model.startswith(SCHEME) or not path.is_dir() or path.is_absolute():
        return model
    relative = os.path.relpath(path.absolute(), folder.resolve())
    return relative if relative.startswith("..") else f"./{relative}"
