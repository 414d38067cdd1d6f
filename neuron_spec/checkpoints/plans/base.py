"""The plan of a preparation, and the steps that all draft heads share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_spec.checkpoints.formats.base import DERIVED_SUFFIXES
from neuron_spec.checkpoints.formats.eagle import EMBEDDING, FC_BIAS, FC_WEIGHT, LM_HEAD
from neuron_spec.checkpoints.graft import find_embedding, find_lm_head
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.checkpoints.tensors import (
    FLOAT_DTYPES,
    ITEM_BYTES,
    TORCH_DTYPES,
    StoredTensor,
)
from neuron_spec.checkpoints.writer import ComputedTensor, Output, OutputTensor
from neuron_spec.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_FINDERS = {LM_HEAD: find_lm_head, EMBEDDING: find_embedding}


@dataclass
class Plan:
    """What a prepared draft will hold.

    Attributes:
        outputs: every tensor of model.safetensors; no such file if empty.
        heads: every tensor of medusa_heads.pt; no such file if empty.
        links: files that are taken over as they are, under their names.
        decisions: what is copied, renamed, computed or dropped, in sentences.
        config: config.json, unless it is among the links.
    """

    outputs: list[Output] = field(default_factory=list)
    heads: list[Output] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)

    def carry_over(self, draft: Identity, *, without: Collection[str] = ()) -> None:
        """The draft's own tensors under their canonical names, `without` some."""
        for canonical, name in draft.names.items():
            if canonical in without:
                continue
            if canonical.endswith(DERIVED_SUFFIXES):
                self.decisions.append(f"dropped {name}: rebuilt by every loader")
                continue
            stored = draft.tensor(canonical)
            self.outputs.append(OutputTensor(canonical, stored, draft.files, stored.dtype))
            if canonical != name:
                self.decisions.append(f"renamed {name} to {canonical}")

    def graft(self, name: str, target: Identity, dtype: str) -> None:
        """`lm_head.weight` or `embed_tokens.weight` of the target, in the draft's dtype."""
        graft = _FINDERS[name](target)
        refuse_quantized(graft.source)
        self.outputs.append(OutputTensor(name, graft.source, target.files, dtype))
        self.decisions.append(f"copied {name} from {origin(graft.source, dtype)}: {graft.reason}")

    def complete_biases(self, draft: Identity) -> None:
        """A zero bias for o_proj where q, k and v have one: NxDI's Llama has all four or none
        (`attention_bias`, NxDI `models/llama/modeling_llama.py`)."""
        q_bias, o_bias = (f"layers.0.self_attn.{part}_proj.bias" for part in "qo")
        if q_bias not in draft.names or o_bias in draft.names:
            return
        dtype, hidden = draft.tensor(q_bias).dtype, draft.config.hidden_size
        bias = ComputedTensor(o_bias, (hidden,), dtype, lambda: zeros(hidden, dtype), "zeros")
        self.outputs.append(bias)
        self.decisions.append(f"wrote {o_bias} as zeros: NxDI has biases on q, k, v and o or none")


def zeros(count: int, dtype: str) -> Iterator[Tensor]:
    """Values of a vector of zeros, for a `ComputedTensor`."""
    import torch

    yield torch.zeros(count, dtype=getattr(torch, TORCH_DTYPES[dtype]))


def draft_dtype(draft: Identity) -> str:
    """The dtype of the draft's floats; a mixture keeps each tensor's own and grafts in fc's."""
    fc = draft.tensor(FC_WEIGHT)
    refuse_quantized(fc)
    return fc.dtype


def refuse_quantized(stored: StoredTensor) -> None:
    """Quantized values mean nothing without their scales, which a cast would not apply."""
    if stored.dtype not in FLOAT_DTYPES:
        raise CheckpointError(
            f"'{stored.name}' is stored as {stored.dtype}",
            where=stored.path,
            expected=f"one of {', '.join(FLOAT_DTYPES)}",
            mend="use the unquantized checkpoint",
        )


# Fields of published configs that other fields of ours replace.
_REPLACED_FIELDS = ("bias", "dtype", "rope_parameters")
# Fields of the speculators form, which NxDI cannot read.
_SPECULATORS_FIELDS = (
    "speculators_model_type",
    "speculators_version",
    "speculators_config",
    "transformer_layer_architecture",
    "fusion_bias",
    "layernorms",
)


def draft_config(draft: Identity, target: Identity) -> dict[str, Any]:
    """The draft's config with the fields that its file decides written out.

    `bias` is EAGLE's name for what NxDI calls `fc_bias`; the key in the file decides, because
    published configs contradict their files (SafeAILab/EAGLE#100).
    """
    config, pad = draft.config, draft.config.pad_token_id
    dropped = (*_REPLACED_FIELDS, *_SPECULATORS_FIELDS)
    raw = {key: value for key, value in config.raw.items() if key not in dropped}
    return {
        **raw,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": "layers.0.self_attn.q_proj.bias" in draft.names,
        "fc_bias": FC_BIAS in draft.names,
        "tie_word_embeddings": False,
        "torch_dtype": TORCH_DTYPES[draft_dtype(draft)],
        "rope_theta": config.rope_theta,
        "rope_scaling": None if config.rope_kind == "default" else config.rope_scaling,
        "num_key_value_heads": config.num_key_value_heads,
        "pad_token_id": target.config.pad_token_id if pad is None else pad,
    }


def config_decisions(draft: Identity) -> list[str]:
    """The preparation steps that are about config.json."""
    return [step for step in draft.preparation if step.startswith("write ")]


def row_bytes(stored: StoredTensor) -> int:
    """Size of one row of a matrix."""
    return stored.shape[1] * ITEM_BYTES[stored.dtype]


def origin(source: StoredTensor, dtype: str) -> str:
    """Where a copied tensor came from, for a decision."""
    cast = "" if source.dtype == dtype else f", cast from {source.dtype} to {dtype}"
    return f"{source.name} {list(source.shape)} in {source.path}{cast}"
