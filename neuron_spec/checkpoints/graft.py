"""The target's LM head and embedding, found for a draft that comes without them."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.tensors import StoredTensor
from neuron_spec.errors import CheckpointError

LM_HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Graft:
    """A tensor of the target that the draft gets, and why this one."""

    source: StoredTensor
    reason: str


def find_lm_head(target: Identity) -> Graft:
    """The matrix that turns the target's hidden states into logits, [vocab, hidden].

    Raises:
        CheckpointError: the target has neither an LM head nor a tied embedding.
    """
    tensors = target.files.tensors
    if target.config.tie_word_embeddings:
        # A head that is stored as well and differs was refused before: see `contradictions`.
        return Graft(_required(target, EMBEDDING), "the target ties its LM head to its embedding")
    if LM_HEAD in tensors:
        return Graft(tensors[LM_HEAD], "the target's own LM head")
    raise CheckpointError(
        f"no '{LM_HEAD}', and config.json does not tie it to the embedding",
        where=target.directory,
        mend="check that this is the target the draft was trained for and that no shard is missing",
    )


def find_embedding(target: Identity) -> Graft:
    """The target's token embedding, [vocab, hidden]."""
    return Graft(_required(target, EMBEDDING), "the draft was trained on the target's embedding")


def _required(target: Identity, name: str) -> StoredTensor:
    tensor = target.files.tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"no '{name}'", where=target.directory)
    return tensor
