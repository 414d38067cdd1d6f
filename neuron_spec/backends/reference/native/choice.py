"""Spec -> whether its products go through the compiled kernels, and which."""

from __future__ import annotations

import logging
from typing import Literal

import torch

from neuron_spec.backends.reference.native.binding import Native
from neuron_spec.backends.reference.native.compiler import kernels, path_of_kernels
from neuron_spec.backends.reference.native.pages import LargePages
from neuron_spec.errors import BackendError, UserError
from neuron_spec.spec.schema import BuildSpec

logger = logging.getLogger(__name__)

Model = Literal["target", "draft"]

_MAX_ROWS = 64
"""From about where on other ways are faster: the processor's instructions for wide passes where it
has such, else PyTorch's products; but of those ours are as fast with AVX2 or AVX-512, however many
the rows."""


def native_of(
    spec: BuildSpec, model: Model = "target", pages: LargePages | None = None
) -> Native | None:
    """How the spec's target or draft goes through the kernels; None where PyTorch's operators run.

    With pinned shapes every step of a decoder goes through them, however wide. Weights go into
    `pages`.

    Raises:
        UserError: int8 weights of the target are wanted and the kernels cannot be had.
    """
    reference, shape = spec.reference, spec.shape
    is_int8 = "int8" in (reference.target_weights if model == "target" else reference.draft_weights)
    if not reference.wants_kernels:
        return None
    try:
        compiled = kernels()
    except BackendError as error:
        if is_int8 and model == "target":  # a draft may as well be whole: outputs are the same
            raise UserError(
                f"int8 weights need compiled kernels: {error}",
                where="reference.target_weights",
                mend="install a C++ compiler (on Debian: apt-get install g++), or leave it out",
            ) from error
        logger.warning("PyTorch's operators are used, which is slower: %s", error)
        return None
    takes_wide = not is_int8 and compiled.has_wide(reference.dtype)
    max_rows = _MAX_ROWS if takes_wide or not (is_int8 or _has_wide_vectors()) else None
    pins = spec.verification.pin_shapes
    if pins and max_rows is not None:
        max_rows = max(max_rows, shape.batch_size * (spec.num_draft_tokens + 1))
    takes_all = takes_wide or max_rows is None
    return Native(
        compiled,
        max_rows,
        takes_wide=takes_wide,
        is_int8=is_int8,
        keeps_weights=pins or not takes_all,
        pages=pages or LargePages(),
    )


def _has_wide_vectors() -> bool:
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def is_to_compile(spec: BuildSpec) -> bool:
    """Whether the kernels are wanted and not there yet."""
    return spec.reference.wants_kernels and not path_of_kernels().is_file()
