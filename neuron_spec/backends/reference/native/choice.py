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

_MAX_ROWS = {"float32": 64, "bfloat16": 12}
"""From about where on others are faster, as measured on a server's CPU: tiles where it has them,
else PyTorch's products. bfloat16 weights go through tiles whatever their rows. With AVX2 alone
neither is faster, however many the rows."""


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
    max_rows = None if is_int8 else _max_rows(reference.dtype)
    pins = spec.verification.pin_shapes
    if pins and max_rows is not None:
        max_rows = max(max_rows, shape.batch_size * (spec.num_draft_tokens + 1))
    has_tiles = compiled.has_tiles and not is_int8
    takes_all = has_tiles or max_rows is None
    return Native(
        compiled,
        max_rows,
        has_tiles=has_tiles,
        is_int8=is_int8,
        keeps_weights=pins or not takes_all,
        pages=pages or LargePages(),
    )


def _max_rows(dtype: str) -> int | None:
    return None if _is_avx2() else _MAX_ROWS[dtype]


def _is_avx2() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


def is_to_compile(spec: BuildSpec) -> bool:
    """Whether the kernels are wanted and not there yet."""
    return spec.reference.wants_kernels and not path_of_kernels().is_file()
