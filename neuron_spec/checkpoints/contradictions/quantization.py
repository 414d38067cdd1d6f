"""Quantized weights mean nothing without their scales, and neither NxDI's draft path nor the
reference backend applies the scales of a published checkpoint to a copied tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuron_spec.checkpoints.contradictions.base import Contradiction
from neuron_spec.checkpoints.contradictions.files import some
from neuron_spec.checkpoints.graft import EMBEDDING, LM_HEAD
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.errors import shown

# compressed-tensors and fp8; AWQ and GPTQ; bitsandbytes.
_SUFFIXES = (
    ".weight_scale", ".weight_scale_inv", ".weight_packed", ".weight_zero_point", ".weight_shape",
    ".weight_g_idx", ".qweight", ".qzeros", ".scales", ".g_idx", ".SCB", ".absmax", ".quant_map",
)  # fmt: skip
_DTYPES = ("I8", "U8", "F8_E4M3", "F8_E5M2")
_SOURCE = "neuron_spec.checkpoints.contradictions.quantization"


def is_quantized(identity: Identity) -> bool:
    """Whether config.json or a tensor says so."""
    return bool(_method(identity) or quantized_tensors(identity))


def quantized_tensors(identity: Identity) -> list[str]:
    """Keys that are quantized values, or scales and packings of such."""
    return [
        name
        for name, tensor in sorted(identity.files.tensors.items())
        if name.endswith(_SUFFIXES) or (name.endswith(".weight") and tensor.dtype in _DTYPES)
    ]


def needed_of_target(target: Identity, faults: Sequence[str]) -> list[str]:
    """Of the faults of a target's tensors those that a draft depends on: of a quantized target,
    whose layers are stored under other names and shapes, the LM head's and the embedding's."""
    if not is_quantized(target):
        return list(faults)
    return [fault for fault in faults if fault.startswith((LM_HEAD, EMBEDDING))]


def of(identity: Identity, *, is_draft: bool) -> Iterator[Contradiction]:
    """A quantized draft, a quantized LM head or embedding; quantized layers beside a float head."""
    names, method = quantized_tensors(identity), _method(identity)
    if not (names or method):
        return
    if is_draft:
        yield _quantized_draft(identity, names, method)
        return
    needed = [LM_HEAD, EMBEDDING]
    heads = [
        name for name in names if any(name.startswith(n.removesuffix("weight")) for n in needed)
    ]
    if heads:
        kinds = [f"{name} ({identity.files.tensors[name].dtype})" for name in heads]
        yield Contradiction(
            "quantized-head",
            "error",
            f"the LM head or the embedding is quantized: {some(kinds)}; a copy without its scales "
            "would be another matrix",
            "use the unquantized checkpoint as target, or one whose lm_head was left out of the "
            "quantization",
            _SOURCE,
        )
    else:
        head = next((name for name in needed if name in identity.names), LM_HEAD)
        dtype = identity.tensor(head).dtype if head in identity.names else "missing"
        yield Contradiction(
            "quantized-layers",
            "info",
            f"the layers are quantized ({_how(names, method)}), {head} is not ({dtype}): it is "
            "used as it is",
            "nothing to do",
            _SOURCE,
        )


def _quantized_draft(identity: Identity, names: list[str], method: str) -> Contradiction:
    mend = "use the unquantized draft"
    if not names:
        mend = (
            "no tensor is quantized: remove quantization_config from a copy of config.json, or use "
            "the unquantized draft"
        )
    return Contradiction(
        "quantized", "error", f"the draft is quantized ({_how(names, method)})", mend, _SOURCE
    )


def _method(identity: Identity) -> str:
    """What config.json says; empty if nothing."""
    raw = identity.config.raw
    for field in ("quantization_config", "compression_config"):
        if raw.get(field):
            kind = raw[field].get("quant_method") if isinstance(raw[field], dict) else None
            return f"{field} in config.json" + (f": {shown(kind)}" if kind else "")
    return ""


def _how(names: list[str], method: str) -> str:
    return "; ".join(filter(None, [method, some(names, 3)]))
