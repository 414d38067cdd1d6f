"""Do a draft model and its target give the same ids to the same text?

A draft head is trained on its target's ids; a language model as draft has a tokenizer of its own.
Models of one family can differ in padding (vocab_size) and in meaning (the tokenizer).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.tensors import read_json
from neuron_spec.preflight.findings import Finding, error

_SOURCE = "NxDI models/model_base.py (draft ids go to the target unmapped)"


def check_draft_model(draft: Identity, target: Identity) -> list[Finding]:
    """Vocabulary size and tokenizer of a language model that drafts."""
    ours, theirs = draft.config.vocab_size, target.config.vocab_size
    if ours != theirs:
        return [
            error(
                "draft-vocab-size",
                f"vocab_size: draft {ours}, target {theirs}; token ids are exchanged raw between "
                "draft and target",
                "use a draft with the target's vocabulary",
                _SOURCE,
            )
        ]
    vocabularies = [_vocabulary(identity.directory) for identity in (draft, target)]
    if None in vocabularies:
        return [
            Finding(
                "draft-tokenizer-unknown",
                "warning",
                "no tokenizer.json beside draft or target: whether their ids mean the same text "
                "was not checked",
                "put both tokenizer.json files beside the weights",
                _SOURCE,
            )
        ]
    if vocabularies[0] == vocabularies[1]:
        return []
    return [
        error(
            "draft-tokenizer",
            "draft and target give different ids to the same token, so drafts would be nonsense",
            "use a draft with the target's tokenizer",
            _SOURCE,
        )
    ]


def _vocabulary(directory: Path) -> Mapping[str, Any] | None:
    """Token -> id of tokenizer.json, added tokens included; None without such a file."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    data = read_json(path)
    model, added = data.get("model") or {}, data.get("added_tokens") or []
    vocabulary = model.get("vocab") or {}
    if not isinstance(vocabulary, dict):  # unigram models: a list of [token, score]
        vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
    return {**vocabulary, **{token["content"]: token["id"] for token in added}}
