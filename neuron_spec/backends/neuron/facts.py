"""What rendering needs to know about the checkpoints, and only that; each may be unknown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetFacts:
    """Of the target.

    Attributes:
        model_type: as in config.json; None if the checkpoint is not here.
        directory: where it lies; None if it is not here.
    """

    model_type: str | None = None
    directory: str | None = None


@dataclass(frozen=True)
class DraftFacts:
    """Of the prepared draft.

    Attributes:
        model_type: as in config.json; None if the checkpoint is not here.
        directory: where it lies; None if it is not here.
        has_input_norm: whether the file of an EAGLE v1 head holds an input norm; None if unknown.
        num_medusa_heads: heads in the file; None if unknown or no Medusa.
    """

    model_type: str | None = None
    directory: str | None = None
    has_input_norm: bool | None = None
    num_medusa_heads: int | None = None


@dataclass(frozen=True)
class CheckpointFacts:
    """Of both; without arguments nothing is known."""

    target: TargetFacts = TargetFacts()
    draft: DraftFacts = DraftFacts()


NOTHING_KNOWN = CheckpointFacts()
