"""What a prefill and a decode pool of one deployment must share, as one hash.

The KV cache goes from one to the other, and the second goes on where the first ended: both must
have the same models, the same draft method and shape, and caches of one layout. Buckets, batch
size and verification rule may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from neuron_spec.artifacts.manifest import Ingredients, NeuronRecord, digest_of

# Keywords of NxDI's NeuronConfig that decide how a KV cache lies in memory (`models/config.py`,
# `modules/kvcache/kv_cache_manager.py`).
CACHE_KEYWORDS = (
    "attention_dp_degree",
    "cp_degree",
    "disable_kv_cache_tiling",
    "flash_decoding_enabled",
    "is_block_kv_layout",
    "is_prefix_caching",
    "k_cache_transposed",
    "kv_cache_padding_size",
    "kv_cache_quant",
    "kv_quant_config",
    "logical_nc_config",
    "pa_block_size",
    "padding_side",
)


@dataclass(frozen=True)
class Shared:
    """What two pools must share; all of it plain data.

    Attributes:
        target, draft: file name -> SHA-256; empty without a draft model.
        tree: of the draft, fixed or dynamic; None for chains.
        positions: length of the KV cache, in tokens.
        cache_layout: keyword -> value, those that are set.
    """

    backend: str
    method: str
    target: Mapping[str, str]
    draft: Mapping[str, str]
    num_draft_tokens: int
    tree: Any
    tp_degree: int
    positions: int
    cache_layout: Mapping[str, Any]
    dtype: str


def compatibility_of(shared: Shared) -> str:
    """SHA-256 of what is shared."""
    return digest_of(asdict(shared))


def shared_by_pools(
    ingredients: Ingredients, num_draft_tokens: int, neuron: NeuronRecord | None = None
) -> Shared:
    """Of an artifact, out of what decides it.

    Args:
        neuron: what was compiled, for artifacts of that backend.
    """
    spec, digests = ingredients.spec, ingredients.digests
    compiled = neuron.config["neuron_config"] if neuron else {}
    draft = spec["draft"]
    return Shared(
        backend=ingredients.backend,
        method=draft["method"],
        target=digests["target"],
        draft=digests.get("draft", {}),
        num_draft_tokens=num_draft_tokens,
        tree=draft.get("dynamic_tree") or draft.get("tree") or None,
        tp_degree=compiled.get("tp_degree", 1),
        positions=compiled.get("seq_len", spec["shape"]["max_total_tokens"]),
        cache_layout={name: compiled[name] for name in CACHE_KEYWORDS if name in compiled},
        dtype=compiled.get("torch_dtype", spec["reference"]["dtype"]),
    )
