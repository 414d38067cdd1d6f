"""Whether this machine can compile the kernels."""

from __future__ import annotations

import os
import shutil

from neuron_spec.backends.reference.native.compiler import COMPILERS


def has_compiler() -> bool:
    """One of the compilers that are looked for, or $CXX."""
    return any(name and shutil.which(name) for name in (os.environ.get("CXX"), *COMPILERS))
