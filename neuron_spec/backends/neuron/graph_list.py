"""Which graphs a configuration is compiled to (NxDI `models/model_base.py`,
`modules/autobucketing.py`)."""

from __future__ import annotations

from typing import Any

from neuron_spec.backends.neuron.config import NxdiConfig

Buckets = tuple[int | tuple[int, ...], ...]
CONTEXT_ENCODING = "context_encoding_model"
TOKEN_GENERATION = "token_generation_model"


def planned_graphs(config: NxdiConfig) -> dict[str, Buckets]:
    """`role sub-model` -> its buckets, one graph each; in tokens, or (batch, tokens), or with
    prefix caching (new tokens, cached tokens)."""
    settings = config.neuron_arguments
    graphs = {f"target {CONTEXT_ENCODING}": _prompt_buckets(settings)}
    graphs[f"target {_decoding_model(settings)}"] = _decoding_buckets(settings)
    if config.draft is not None and not config.is_fused:
        graphs[f"draft {CONTEXT_ENCODING}"] = _prompt_buckets(settings)
        graphs[f"draft {TOKEN_GENERATION}"] = _decoding_buckets(settings)
    return graphs


def graphs_of(role: str, application: Any) -> dict[str, Buckets]:
    """Those of an application that was made; it counts, where the two differ."""
    return {
        f"{role} {model.tag}": tuple(
            tuple(bucket) if isinstance(bucket, list) else bucket
            for bucket in model.config.neuron_config.buckets
        )
        for model in application.models
    }


def _decoding_model(settings: dict[str, Any]) -> str:
    if settings.get("enable_fused_speculation"):
        return "fused_speculation_model"
    if settings.get("speculation_length"):
        return "speculation_model"
    if settings.get("medusa_speculation_length"):
        return "medusa_speculation_model"
    return TOKEN_GENERATION


def _prompt_buckets(settings: dict[str, Any]) -> Buckets:
    lengths = tuple(settings.get("context_encoding_buckets") or (settings["max_context_length"],))
    if not settings.get("is_prefix_caching"):
        return lengths
    prefixes = (0, *(settings.get("prefix_buckets") or (settings["max_context_length"],)))
    return tuple((length, prefix) for length in lengths for prefix in prefixes)


def _decoding_buckets(settings: dict[str, Any]) -> Buckets:
    lengths = tuple(settings.get("token_generation_buckets") or (settings["seq_len"],))
    if settings.get("is_medusa"):
        return (settings["seq_len"],)  # one graph, whatever the buckets
    if settings.get("is_prefix_caching"):
        return tuple((1, length) for length in lengths)
    if batches := settings.get("token_generation_batches"):
        largest = settings.get("tkg_batch_size", settings["batch_size"])
        batches = sorted({*batches, largest}, reverse=True)
        return tuple((batch, length) for batch in batches for length in lengths)
    return lengths
