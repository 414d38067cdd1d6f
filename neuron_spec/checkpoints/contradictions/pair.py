"""A draft head beside its target: vocabularies, rotary positions, context lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuron_spec.checkpoints.contradictions.base import FAMILIES_WITH_LAYERS, Contradiction
from neuron_spec.checkpoints.contradictions.vocabulary import different_vocabularies
from neuron_spec.checkpoints.formats.hf import SUPPORTED_ROPE_SCALINGS
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.json_files import read_json

_LLAMA = "NxDI models/llama/modeling_llama.py get_rope"


def of(draft: Identity, target: Identity) -> Iterator[Contradiction]:
    """All of them; the draft as published."""
    yield from different_vocabularies(draft, target)
    if draft.family in FAMILIES_WITH_LAYERS:
        yield from _rope(draft, target)
        yield from _positions(draft, target)


def _rope(draft: Identity, target: Identity) -> Iterator[Contradiction]:
    """Heads are trained with settings of their own, so a difference is told and kept."""
    ours, theirs = draft.config, target.config
    is_said = _says(draft, "rope_theta")
    if ours.rope_theta != theirs.rope_theta or not is_said:
        origin = "" if is_said else " (transformers' default; its config.json has none)"
        yield _kept(
            "rope-theta",
            f"rope_theta: draft {ours.rope_theta:g}{origin}, target {theirs.rope_theta:g}",
        )
    scalings = [_settings(config.rope_scaling) for config in (ours, theirs)]
    kinds = (ours.rope_kind, theirs.rope_kind)
    are_computed = all(kind in SUPPORTED_ROPE_SCALINGS for kind in kinds)
    if scalings[0] != scalings[1] and are_computed:
        yield _kept(
            "rope-scaling-differs",
            f"rope_scaling: draft {scalings[0] or kinds[0]}, target {scalings[1] or kinds[1]}",
        )


def _positions(draft: Identity, target: Identity) -> Iterator[Contradiction]:
    ours, theirs = (model.config.max_position_embeddings for model in (draft, target))
    if ours < theirs:
        yield Contradiction(
            "positions",
            "info",
            f"max_position_embeddings: draft {ours}, target {theirs}; the draft's is kept, NxDI "
            f"computes positions beyond it as well: past {ours} acceptance may fall, the output "
            "stays the target's",
            f"keep shape.max_total_tokens within {ours} where acceptance matters",
            _LLAMA,
        )


def _kept(code: str, difference: str) -> Contradiction:
    return Contradiction(
        code,
        "info",
        f"{difference}; the draft's is kept, as heads are trained with their own",
        "if the head was trained with the target's, write that into a copy of its config.json",
        _LLAMA,
    )


def _settings(scaling: Any) -> dict[str, Any]:
    """A scaling by what it computes: both names of its kind, theta apart, none as empty."""
    settings = dict(scaling or {})
    kind = settings.pop("rope_type", None) or settings.pop("type", None) or "default"
    settings = {k: v for k, v in settings.items() if k not in ("type", "rope_theta")}
    return {} if kind == "default" else {"rope_type": kind, **settings}


def _says(draft: Identity, field: str) -> bool:
    """Whether config.json itself has the field, not only transformers' defaults."""
    raw = read_json(draft.directory / "config.json")
    nested = (raw.get("transformer_layer_config"), raw.get("rope_parameters"))
    tables = [raw, *(table for table in nested if isinstance(table, dict))]
    inner = [table.get("rope_parameters") for table in tables]
    tables += [table for table in inner if isinstance(table, dict)]
    return any(table.get(field) is not None for table in tables)
