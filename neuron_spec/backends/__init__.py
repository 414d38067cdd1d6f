"""Whatever computes, behind one seam (`base.py`). Backends are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from neuron_spec.errors import UserError, nearest

if TYPE_CHECKING:
    from neuron_spec.backends.builds import Backend

BACKENDS = {
    "neuron": "neuron_spec.backends.neuron.build",
    "reference": "neuron_spec.backends.reference.build",
}


def get_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        UserError: no backend of that name.
    """
    if name not in BACKENDS:
        raise UserError(f"no backend '{name}': {nearest(name, list(BACKENDS))}")
    backend: Backend = import_module(BACKENDS[name]).BACKEND
    return backend
