"""Do a draft model and its target give the same ids to the same text?

A draft head is trained on its target's ids; a language model as draft has a tokenizer of its own.
Models of one family can differ in padding (vocab_size) and in meaning (the tokenizer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuron_spec.checkpoints.contradictions.vocabulary import num_used_ids, read_vocabulary
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.pieces import read_pieces, shared_ids
from neuron_spec.errors import shown
from neuron_spec.preflight.findings import Finding, error

_SOURCE = "NxDI models/model_base.py (draft ids go to the target unmapped)"
_INTERSECTION = "neuron_spec.drafters.vocabulary (arXiv:2502.05202)"
_OR_INTERSECTION = (
    "or set draft.vocabulary to 'intersection' to propose only the tokens that both have "
    "(reference backend)"
)
_SMALL_SHARE = 0.1

Vocabulary = Mapping[str, Any]


def check_draft_model(draft: Identity, target: Identity) -> list[Finding]:
    """Vocabulary size and tokenizer of a language model that drafts."""
    ours, theirs = (read_vocabulary(identity.directory) for identity in (draft, target))
    findings = []
    if draft.config.vocab_size != target.config.vocab_size:
        findings.append(_other_size(draft, target, ours, theirs))
    if ours is None or theirs is None:
        findings.append(
            Finding(
                "draft-tokenizer-unknown",
                "warning",
                "no tokenizer.json beside draft or target: whether their ids mean the same text "
                "was not checked",
                "put both tokenizer.json files beside the weights",
                _SOURCE,
            )
        )
    elif ours != theirs:
        findings.append(
            error(
                "draft-tokenizer",
                f"{_difference(ours, theirs)}, so drafts would be nonsense",
                f"use a draft with the target's tokenizer, {_OR_INTERSECTION}",
                _SOURCE,
            )
        )
    return findings


def check_intersection(draft: Identity, target: Identity) -> list[Finding]:
    """How much two vocabularies share, where only shared tokens are proposed."""
    ours, theirs = (read_pieces(identity.directory) for identity in (draft, target))
    if ours is None or theirs is None:
        return [
            error(
                "draft-tokenizer-unknown",
                "no tokenizer.json beside draft or target: which tokens both have is not known",
                "put both tokenizer.json files beside the weights",
                _INTERSECTION,
            )
        ]
    shared = len(shared_ids(ours, theirs))
    share = shared / max(len(ours), 1)
    if share >= _SMALL_SHARE:
        return []
    message = f"draft and target share {shared} of the draft's {len(ours)} tokens"
    if shared:
        mend = "nothing to do, or use a draft whose tokenizer is closer: drafts may be poor"
        return [Finding("draft-vocabulary-small", "warning", message, mend, _INTERSECTION)]
    return [
        error(
            "draft-vocabulary-disjoint",
            f"{message}: it could propose nothing",
            "use a draft with a byte-level or SentencePiece tokenizer as the target's",
            _INTERSECTION,
        )
    ]


def _other_size(
    draft: Identity, target: Identity, ours: Vocabulary | None, theirs: Vocabulary | None
) -> Finding:
    """Padding where one tokenizer serves both, another vocabulary otherwise."""
    sizes = {draft.config.vocab_size, target.config.vocab_size}
    used = num_used_ids(theirs)
    message = (
        f"vocab_size: draft {draft.config.vocab_size}, target {target.config.vocab_size}; token "
        "ids are exchanged raw between draft and target"
    )
    mend = f"use a draft with the target's vocabulary, {_OR_INTERSECTION}"
    if used is not None and ours == theirs and used <= min(sizes):
        message += f"; only the padding differs: both have the same tokenizer, of {used} ids"
        mend = (
            "use a draft with the target's vocab_size, or pad embedding and LM head of the smaller "
            f"model to {max(sizes)} rows in a copy and set vocab_size there; rows of the LM head "
            "that are the mean of the others are never the largest logit, rows of zeros can be"
        )
    return error("draft-vocab-size", message, mend, _SOURCE)


def _difference(ours: Vocabulary, theirs: Vocabulary) -> str:
    """How many tokens differ, and the first of them by the target's id."""
    tokens = [token for token in {**theirs, **ours} if ours.get(token) != theirs.get(token)]
    first = tokens[0]
    ids = [
        f"{role} {'none' if token_id is None else token_id}"
        for role, token_id in (("draft", ours.get(first)), ("target", theirs.get(first)))
    ]
    return (
        f"draft and target give different ids to {len(tokens)} of {len(theirs)} tokens, the first "
        f"is {shown(first)} ({', '.join(ids)})"
    )
