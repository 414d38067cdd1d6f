"""Weight files that are not read, and dtypes that differ within one draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from neuron_spec.checkpoints.contradictions.base import Contradiction
from neuron_spec.checkpoints.formats.eagle import FC_WEIGHT
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.tensors import FLOAT_DTYPES, HEAD_FILES, WEIGHT_FILES, CheckpointFiles

_PRECEDENCE = "NxDI modules/checkpoint.py: the first of a fixed list of names is read, no other"
_WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin",
                    "pytorch_model.bin.index.json")  # fmt: skip


def unread_files(files: CheckpointFiles) -> Iterator[Contradiction]:
    """Leftovers of another format or an earlier download, which may hold other values."""
    if files.weight_file.name not in WEIGHT_FILES:  # heads beside a whole model: all are used
        return
    read = {files.weight_file.name, *(path.name for path in files.files)}
    present = {path.name for pattern in _WEIGHT_PATTERNS for path in files.directory.glob(pattern)}
    present -= set(HEAD_FILES)
    if unread := sorted(present - read):
        yield Contradiction(
            "unread-files",
            "warning",
            f"{files.weight_file.name} is read, {some(unread)} beside it "
            f"{'is' if len(unread) == 1 else 'are'} not (NxDI's precedence)",
            f"remove from {files.directory} what is not the model",
            _PRECEDENCE,
        )


def mixed_dtypes(draft: Identity) -> Iterator[Contradiction]:
    """Floats of more than one dtype: each is kept, and what is copied follows `fc`."""
    by_dtype: dict[str, list[str]] = defaultdict(list)
    for canonical in sorted(draft.names):
        dtype = draft.tensor(canonical).dtype
        if dtype in FLOAT_DTYPES:
            by_dtype[dtype].append(canonical)
    if len(by_dtype) > 1:
        parts = [f"{len(names)} x {dtype} ({some(names, 2)})" for dtype, names in by_dtype.items()]
        follows = ""
        if FC_WEIGHT in draft.names:
            follows = f"; torch_dtype and copies of the target follow {FC_WEIGHT}, " + (
                draft.tensor(FC_WEIGHT).dtype
            )
        yield Contradiction(
            "mixed-dtypes",
            "info",
            f"dtypes are mixed: {', '.join(parts)}; every tensor keeps its own{follows}",
            "nothing to do: NxDI casts all to the target's dtype (unless cast_type is as-declared)",
            "NxDI models/application_base.py checkpoint_loader_fn",
        )


def some(names: list[str], limit: int = 6) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
