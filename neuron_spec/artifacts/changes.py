"""Why an artifact can be kept, or has to be compiled anew, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neuron_spec.artifacts.manifest import SMALL_MODEL_FILES, Ingredients

_ABSENT = object()


def changes(before: Ingredients, now: Ingredients) -> list[str]:
    """What differs, one entry each: `shape.batch_size 1 -> 2`, `target weights`, `torch 2.7 -> 2.8`

    Exactly what the fingerprint is made of: no entry means the same fingerprint, but for the format
    of the manifest. Where the backend differs, nothing else is compared.
    """
    if before.backend != now.backend:
        return [f"backend {before.backend} -> {now.backend}"]
    found = [*_changed(_flat(before.settings), _flat(now.settings))]
    for role in sorted({*before.models, *now.models}):
        found += _model_changes(role, before.digests.get(role), now.digests.get(role))
    found += _changed(before.libraries, now.libraries)
    return found + [*_changed(before.environment, now.environment)]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; an empty table stays, so that its loss is seen."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{key}.")
        else:
            found[key] = value
    return found


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        old, new = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if old != new:
            yield f"{name} {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    return "none" if value is _ABSENT or value is None else str(value)


def _model_changes(
    role: str, before: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> list[str]:
    if before is None or now is None:
        return [f"{role} {'added' if before is None else 'removed'}"]
    names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    small = sorted(names & set(SMALL_MODEL_FILES))
    return [f"{role} {name}" for name in small] + [f"{role} weights"] * bool(names - set(small))
