"""The LM head of a language model: its own, or its embedding?

Readers disagree where config.json ties the head and another one is stored. NxDI 0.9 overwrites the
stored head by the embedding (`models/application_base.py`), transformers 4.57 does the same, and
transformers 5 keeps the stored head and warns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from neuron_spec.checkpoints.contradictions.base import Contradiction
from neuron_spec.checkpoints.formats.hf import SUPPORTED_MODEL_TYPES
from neuron_spec.checkpoints.graft import EMBEDDING, LM_HEAD
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.model_config import TIED_BY_DEFAULT
from neuron_spec.checkpoints.reading import COPY_BYTES, read_pieces
from neuron_spec.checkpoints.tensors import CheckpointFiles, StoredTensor

_SOURCE = "NxDI models/application_base.py get_state_dict; transformers 4.57 and 5 tie_weights"
_FIELD = "tie_word_embeddings"
_PIECE_BYTES = COPY_BYTES


def tied_head(model: Identity) -> Iterator[Contradiction]:
    """A stored head that the config ties away, a flag that is not there, a head that is not."""
    is_tied, type_name = model.config.tie_word_embeddings, model.config.model_type
    is_said = model.config.raw.get(_FIELD) is not None
    said = "true" if is_tied else "false"
    says = f"says {_FIELD}: {said}"
    if not is_said:
        is_known = type_name in (*SUPPORTED_MODEL_TYPES, *TIED_BY_DEFAULT)
        origin = f"transformers' default for {type_name}" if is_known else "taken"
        says = f"does not say {_FIELD} ({said} is {origin})"
    if is_tied and LM_HEAD in model.names:
        yield from _both(model, says)
    elif is_tied and not is_said:
        yield Contradiction(
            "tied-by-default",
            "info",
            f"config.json {says}: the LM head is the embedding",
            f"write {_FIELD} in a copy of config.json",
            _SOURCE,
        )
    elif not is_tied and LM_HEAD not in model.names:
        yield Contradiction(
            "no-lm-head",
            "error",
            f"there is no {LM_HEAD}, and config.json {says}",
            f"if the model ties its head to its embedding, set {_FIELD}: true in a copy of "
            "config.json; if not, a shard is missing",
            _SOURCE,
        )


def _both(model: Identity, says: str) -> Iterator[Contradiction]:
    tensors = (model.tensor(name) for name in (LM_HEAD, EMBEDDING) if name in model.names)
    head, *embedding = tensors
    if not embedding or head.shape != embedding[0].shape:
        return  # missing or misshapen, which is told elsewhere
    if same_values(model.files, head, embedding[0]):
        yield Contradiction(
            "tied-head-stored",
            "info",
            f"config.json {says}, and {LM_HEAD} is stored too: it equals {EMBEDDING} byte for "
            "byte, so every reader computes the same",
            "nothing to do",
            _SOURCE,
        )
        return
    yield Contradiction(
        "tied-head",
        "error",
        f"config.json {says}, but {LM_HEAD} is stored too and differs from {EMBEDDING}"
        f"{_dtypes(head, embedding[0])}; NxDI and transformers 4.57 would use the "
        "embedding, transformers 5 the stored head",
        f"in a copy of config.json set {_FIELD} to what the model was trained with: false if the "
        f"stored head counts; if the embedding counts, remove {LM_HEAD} from a copy of the weights",
        _SOURCE,
    )


def same_values(files: CheckpointFiles, first: StoredTensor, second: StoredTensor) -> bool:
    """Whether two tensors of one shape are equal bit by bit; no more than a block is in memory."""
    if first.dtype != second.dtype:
        return False
    if first.offset is None or second.offset is None:
        return bool(files.read(first.name).equal(files.read(second.name)))
    pieces = zip_longest(*(read_pieces(tensor, _PIECE_BYTES) for tensor in (first, second)))
    return all(one == other for one, other in pieces)


def _dtypes(head: StoredTensor, embedding: StoredTensor) -> str:
    if head.dtype == embedding.dtype:
        return ""
    return f" (stored as {head.dtype} and {embedding.dtype})"
