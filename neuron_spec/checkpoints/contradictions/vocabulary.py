"""Two vocabulary sizes: the same vocabulary padded differently, or another vocabulary?

Models of one family pad differently (Qwen2.5: 151936 and 152064 rows for 151665 tokens). A head
whose tensors do not depend on the size can take the target's; one with rows for every token cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.contradictions.base import Contradiction
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.json_files import MAX_TOKENIZER_BYTES, read_json
from neuron_spec.errors import CheckpointError

# Padding rounds up to a multiple of at most a few hundred; another vocabulary differs by far more.
_MAX_PADDING = 0.01
_SOURCE = "NxDI models/model_base.py (draft ids go to the target unmapped)"


def read_vocabulary(directory: Path) -> Mapping[str, Any] | None:
    """Token -> id of tokenizer.json, added tokens included; None without such a file.

    Raises:
        CheckpointError: a damaged file.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    data = read_json(path, MAX_TOKENIZER_BYTES)
    try:
        model, added = data.get("model") or {}, data.get("added_tokens") or []
        vocabulary = model.get("vocab") or {}
        if not isinstance(vocabulary, dict):  # unigram models: a list of [token, score]
            vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
        return {**vocabulary, **{token["content"]: token["id"] for token in added}}
    except (AttributeError, IndexError, KeyError, TypeError):
        raise CheckpointError(
            "not a tokenizer: no table of tokens and ids", where=path, mend="download it again"
        ) from None


def num_used_ids(vocabulary: Mapping[str, Any] | None) -> int | None:
    """Rows that a model needs for every id of a tokenizer; None if the tokenizer is unknown."""
    ids = [token_id for token_id in (vocabulary or {}).values() if type(token_id) is int]
    return max(ids) + 1 if ids else None


def adopt_vocabulary(draft: Identity, target: Identity) -> Identity:
    """The draft head with the target's vocab_size, where only padding differs and none of its
    tensors depends on it; otherwise as it is."""
    theirs = target.config.vocab_size
    if draft.config.vocab_size == theirs or _sized_tensors(draft) or not _is_padding(draft, target):
        return draft
    raw = {**draft.config.raw, "vocab_size": theirs}
    config = replace(draft.config, vocab_size=theirs, raw=raw)
    steps = draft.format.preparation(config, draft.shapes)
    return replace(draft, config=config, preparation=steps)


def different_vocabularies(draft: Identity, target: Identity) -> Iterator[Contradiction]:
    """Of a draft head as published, before `adopt_vocabulary`."""
    ours, theirs = draft.config.vocab_size, target.config.vocab_size
    if ours in (0, theirs):  # heads that share the target's projection know no vocabulary
        return
    sizes = f"vocab_size: draft {ours}, target {theirs}"
    used = num_used_ids(read_vocabulary(target.directory))
    ids = f"the target's tokenizer uses {used} ids" if used else (
        f"without tokenizer.json in {target.directory} the ids in use are not known"
    )  # fmt: skip
    sized = _sized_tensors(draft)
    if not _is_padding(draft, target):
        yield Contradiction(
            "vocab-size",
            "error",
            f"{sizes}; this is another vocabulary, not another padding ({ids}); token ids are "
            "exchanged raw between draft and target",
            "use the draft that was trained for this target",
            _SOURCE,
        )
    elif sized:
        yield Contradiction(
            "vocab-size",
            "error",
            f"{sizes}; this looks like another padding of the same vocabulary ({ids}), but the "
            f"draft holds a row for every id: {', '.join(sized)}",
            "use the draft that was trained for this target; if it is the same vocabulary, cut or "
            f"pad these tensors to {theirs} rows in a copy and set vocab_size there",
            _SOURCE,
        )
    else:
        yield Contradiction(
            "vocab-size-adopted",
            "info",
            f"{sizes}; no tensor of the draft depends on it and it looks like another padding "
            f"({ids}): the target's is taken",
            "nothing to do if the draft was trained for this target",
            _SOURCE,
        )


def _sized_tensors(draft: Identity) -> list[str]:
    size = draft.config.vocab_size
    return [name for name, shape in sorted(draft.shapes.items()) if shape[:1] == (size,)]


def _is_padding(draft: Identity, target: Identity) -> bool:
    """Whether one tokenizer can serve both sizes."""
    sizes = (draft.config.vocab_size, target.config.vocab_size)
    used = num_used_ids(read_vocabulary(target.directory)) or 0
    return used <= min(sizes) and max(sizes) - min(sizes) <= _MAX_PADDING * max(sizes)
