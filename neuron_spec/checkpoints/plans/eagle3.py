"""EAGLE-3: NxDI's key names, the LM head widened to the target's vocabulary, a flat config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_spec.checkpoints.formats.eagle import EMBEDDING, LM_HEAD
from neuron_spec.checkpoints.formats.eagle3 import (
    D2T,
    FEATURE_LAYERS,
    T2D,
    draft_vocab_size,
    feature_layers,
    tapped_layers,
)
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.plans.base import (
    Plan,
    config_decisions,
    draft_config,
    draft_dtype,
)
from neuron_spec.checkpoints.plans.widening import widen
from neuron_spec.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

# Fields that mean something to other engines only, or that hold for the published form.
_DROPPED_FIELDS = (
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_residual",
    "norm_before_fc",
    "norm_output",
    "fc_norm",
    "embed_requires_grad",
)


def plan(draft: Identity, target: Identity) -> Plan:
    """See `neuron_spec.checkpoints.formats.eagle3` for the layouts."""
    config = {
        name: value
        for name, value in draft_config(draft, target).items()
        if name not in _DROPPED_FIELDS
    }
    layers = feature_layers(draft.config.raw, target.config.num_hidden_layers)
    fields = {"num_hidden_layers": 1, FEATURE_LAYERS: list(layers or ())}
    result = Plan(config={**config, **fields})
    usual = tapped_layers(target.config.num_hidden_layers)
    if layers != usual:
        result.decisions.append(
            f"features are the inputs of the target's layers {list(layers or ())}, as config.json "
            f"says; NxDI taps those of {list(usual)} and nothing else"
        )
    has_own_head = LM_HEAD in draft.names
    is_reduced = has_own_head and draft_vocab_size(draft.config) != draft.config.vocab_size
    keeps_embedding = EMBEDDING in draft.names and bool(draft.config.raw.get("embed_requires_grad"))
    dropped = {D2T, T2D}
    dropped |= {LM_HEAD} if is_reduced else set()
    dropped |= set() if keeps_embedding else {EMBEDDING}
    result.carry_over(draft, without=dropped)
    if is_reduced:
        _widen(result, draft)
    elif not has_own_head:
        result.graft(LM_HEAD, target, draft_dtype(draft))
    if not keeps_embedding:
        result.graft(EMBEDDING, target, draft_dtype(draft))
        if EMBEDDING in draft.names:
            result.decisions.append(
                f"{EMBEDDING} of the draft's file is not used: heads are trained on the target's "
                "frozen embedding, and some exporters store another one"
            )
    result.decisions += config_decisions(draft)
    return result


def _widen(result: Plan, draft: Identity) -> None:
    head, vocab = draft.tensor(LM_HEAD), draft.config.vocab_size
    token_ids, reading = target_token_ids(draft)
    output = widen(
        LM_HEAD,
        head,
        draft.files,
        token_ids=token_ids,
        vocab_size=vocab,
        source_map=draft.tensor(D2T),
        reading=reading,
    )
    result.outputs.append(output)
    result.decisions.append(f"widened {LM_HEAD} from {head.shape[0]} to {vocab} rows: {output.how}")


def target_token_ids(draft: Identity) -> tuple[Tensor, str]:
    """[draft vocab] the target's token of each row, and how d2t was read.

    d2t holds offsets (token = i + d2t[i]); some trainers store the ids themselves. Where t2d is
    there it decides; without it offsets are what the published code reads.

    Raises:
        CheckpointError: the map is not strictly increasing within the vocabulary, or t2d and d2t
            contradict each other.
    """
    import torch

    d2t = draft.files.read(draft.names[D2T])
    _check_map(
        draft, d2t.ndim == 1 and not d2t.is_floating_point(), "d2t is not a list of integers"
    )
    readings = {"offsets": torch.arange(len(d2t)) + d2t.long(), "absolute ids": d2t.long()}
    if T2D in draft.names:
        mask = draft.files.read(draft.names[T2D]).bool()
        kept = mask.nonzero().flatten()
        for reading, ids in readings.items():
            if torch.equal(ids, kept):
                return ids, reading
        _check_map(draft, False, "d2t and t2d contradict each other")
    ids = readings["offsets"]
    is_inside = int(ids[0]) >= 0 and int(ids[-1]) < draft.config.vocab_size
    is_valid = is_inside and bool((ids.diff() > 0).all())
    _check_map(draft, is_valid, "i + d2t[i] is not strictly increasing within the vocabulary")
    return ids, "offsets"


def _check_map(draft: Identity, is_valid: bool, problem: str) -> None:
    if not is_valid:
        raise CheckpointError(
            problem,
            where=draft.directory,
            expected="offsets: token of row i = i + d2t[i], marked true in t2d",
            mend="download the head again, or ask its authors for the vocabulary map",
        )
