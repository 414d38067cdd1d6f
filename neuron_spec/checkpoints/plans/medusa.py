"""Medusa: a model folder as NxDI reads it, the target's files with `medusa_heads.pt` beside them.

Heads that share a projection keep sharing it: NxDI's file is a PyTorch file, in which a matrix that
several names refer to is stored once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_spec.checkpoints.formats.medusa import (
    PREPARED_FILE,
    SHARED_HEAD,
    TOKEN_MAP,
    block,
    has_base,
    has_projections,
    num_heads,
    projection,
    shares_head,
)
from neuron_spec.checkpoints.graft import find_lm_head
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.plans.base import Plan, origin, refuse_quantized, zeros
from neuron_spec.checkpoints.plans.widening import widen
from neuron_spec.checkpoints.tensors import HEAD_FILES, WEIGHT_FILES
from neuron_spec.checkpoints.writer import ComputedTensor, Output, OutputTensor
from neuron_spec.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

# What a model folder holds beside weights: configs, tokenizer, chat template.
_MODEL_FILES = (".json", ".model", ".txt", ".jinja")
_OURS = ("prepared.json", *WEIGHT_FILES, *HEAD_FILES)


def plan(draft: Identity, target: Identity) -> Plan:
    """See `neuron_spec.checkpoints.formats.medusa` for the layouts."""
    result = Plan()
    found = draft.shapes
    for head in range(num_heads(found)):
        _add_block(result, draft, head)
    _add_projections(result, draft, target)
    if has_base(found):
        _split_base(result, draft, target)
    else:
        result.links = _model_files(target, with_weights=True)
        result.decisions.append(f"the other files are those of {target.directory}")
    return result


def _add_block(result: Plan, draft: Identity, head: int) -> None:
    weight, bias = block(head, "weight"), block(head, "bias")
    stored = draft.tensor(weight)
    refuse_quantized(stored)
    result.heads.append(_copy(weight, draft, weight))
    if stored.name != weight:
        result.decisions.append(f"renamed {stored.name} to {weight}")
    if bias in draft.names:
        result.heads.append(_copy(bias, draft, bias))
        return
    hidden, dtype = draft.config.hidden_size, stored.dtype
    output = ComputedTensor(bias, (hidden,), dtype, lambda: zeros(hidden, dtype), "zeros")
    result.heads.append(output)
    result.decisions.append(f"wrote {bias} as zeros: NxDI's block has a bias, the file's has none")


def _add_projections(result: Plan, draft: Identity, target: Identity) -> None:
    found = draft.shapes
    heads = range(num_heads(found))
    if not has_projections(found) and not shares_head(draft.config, found):
        graft = find_lm_head(target)
        refuse_quantized(graft.source)
        dtype = graft.source.dtype
        for head in heads:
            result.heads.append(OutputTensor(projection(head), graft.source, target.files, dtype))
        result.decisions.append(
            f"the projection of all {len(heads)} heads is {origin(graft.source, dtype)}: they have "
            f"none of their own; {graft.reason}"
        )
        return
    is_shared = shares_head(draft.config, found)
    shared = SHARED_HEAD if SHARED_HEAD in found and is_shared else projection(0)
    outputs: dict[str, Output] = {}
    for head in heads:
        source = shared if is_shared else projection(head)
        if source not in outputs:
            outputs[source] = _projection(result, draft, source, target.config.vocab_size)
        result.heads.append(_renamed(outputs[source], projection(head)))
    if is_shared:
        name = draft.names[shared]
        result.decisions.append(f"the projection of all {len(heads)} heads is their own {name}")


def _projection(result: Plan, draft: Identity, name: str, vocab_size: int) -> Output:
    stored = draft.tensor(name)
    refuse_quantized(stored)
    if TOKEN_MAP not in draft.names or stored.shape[0] == vocab_size:
        return _copy(name, draft, name)
    output = widen(
        name,
        stored,
        draft.files,
        token_ids=_token_ids(draft, vocab_size),
        vocab_size=vocab_size,
        source_map=draft.tensor(TOKEN_MAP),
        reading="the target's ids",
    )
    result.decisions.append(
        f"widened {stored.name} from {stored.shape[0]} to {vocab_size} rows: {output.how}"
    )
    return output


def _token_ids(draft: Identity, vocab_size: int) -> Tensor:
    """[draft vocab] the target's token of each row (vllm-project/vllm `models/medusa.py`)."""
    ids = draft.files.read(draft.names[TOKEN_MAP])
    is_map = ids.ndim == 1 and not ids.is_floating_point() and len(ids.unique()) == len(ids) > 0
    if not is_map or int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise CheckpointError(
            "token_map is no list of different tokens of the target",
            where=draft.directory,
            expected="token_map[i] = the target's token of row i",
            mend="download the heads again, or ask their authors for the map",
        )
    return ids.long()


def _split_base(result: Plan, draft: Identity, target: Identity) -> None:
    """The base model that was tuned with the heads; no other fits them."""
    if draft.directory.resolve() != target.directory.resolve():
        raise CheckpointError(
            "holds heads and the base model that was tuned with them, but the target is another",
            where=draft.directory,
            found=str(target.directory),
            expected="target.model and draft.model are the same directory",
            mend="set target.model to this directory",
        )
    heads = {tensor for tensor in draft.names if tensor.startswith("medusa_head_")}
    result.carry_over(draft, without=heads)
    result.config = _base_config(draft)
    result.links = _model_files(draft, with_weights=False)
    result.decisions.append(f"split: heads into {PREPARED_FILE}, the base into model.safetensors")


def _base_config(draft: Identity) -> dict[str, Any]:
    raw = draft.config.raw
    return {name: value for name, value in raw.items() if not name.startswith("medusa_")}


def _model_files(model: Identity, *, with_weights: bool) -> list[Path]:
    """Files of the model's folder that belong in the prepared one."""
    files = [
        path
        for path in sorted(model.directory.iterdir())
        if path.is_file() and path.suffix in _MODEL_FILES and path.name not in _OURS
        and not path.name.endswith(".index.json")
    ]  # fmt: skip
    if not with_weights:
        return [path for path in files if path.name != "config.json"]
    weights = {model.files.weight_file, *model.files.files}
    return [*files, *sorted(weights)]


def _copy(name: str, draft: Identity, canonical: str) -> OutputTensor:
    stored = draft.tensor(canonical)
    return OutputTensor(name, stored, draft.files, stored.dtype)


def _renamed(output: Output, name: str) -> Output:
    return replace(output, name=name)
