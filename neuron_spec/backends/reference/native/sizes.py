"""How much memory packed weights need, from headers alone; without torch."""

from __future__ import annotations

import math
from pathlib import Path

from neuron_spec.checkpoints.tensors import CheckpointFiles
from neuron_spec.spec.schema import BuildSpec

_EMBEDDING, _LM_HEAD = "embed_tokens.weight", "lm_head.weight"


def packed_bytes(spec: BuildSpec, target: Path, draft: Path | None) -> int:
    """What the kernels' weights take, about: the products' matrices in the spec's numbers."""
    reference = spec.reference
    if not reference.wants_kernels:
        return 0
    models = [(target, reference.target_weights)]
    if draft is not None:
        models.append((draft, reference.draft_weights))
    whole = 2 if reference.dtype == "bfloat16" else 4
    return sum(
        _num_weights(directory) * (1 if weights == "int8" else whole)
        for directory, weights in models
    )


def _num_weights(directory: Path) -> int:
    """Of all matrices, the embedding only where it is the LM head too; 0 in files that tell it only
    when they are read."""
    files = CheckpointFiles(directory)
    if any(path.suffix != ".safetensors" for path in files.files):
        return 0
    matrices = [tensor for tensor in files.tensors.values() if len(tensor.shape) == 2]
    has_head = any(tensor.name.endswith(_LM_HEAD) for tensor in matrices)
    return sum(
        math.prod(tensor.shape)
        for tensor in matrices
        if not (has_head and tensor.name.endswith(_EMBEDDING))
    )
