"""What NxDI's configuration classes take, by SDK release: NxDI itself only logs an unknown keyword,
so that a misspelt one would silently do nothing (`models/config.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from neuron_spec.errors import nearest

_TABLE = "nxdi_keywords.json"
# What the configuration classes of some families take beside NeuronConfig's keywords.
FAMILY_SECTIONS = ("moe_neuron_config", "gpt_oss_neuron_config")
# Keywords that are tables of their own, each a section of the recorded table. NxD ignores what it
# does not know in the second and third without even logging it.
_NESTED = ("router_config", "blockwise_matmul_config", "hybrid_sharding_config")
_REMOVED = {
    "trace_tokengen_model": "NxDI derives it",
    "logical_neuron_cores": "renamed to logical_nc_config",
}


_LENGTHS = "shape.max_prompt_tokens and shape.max_total_tokens"
_METHOD = "draft.method"
# Keyword of NeuronConfig -> the field of the spec that decides it: in [neuron.config] it could
# contradict that field.
DECIDED_BY = {
    **dict.fromkeys(("seq_len", "max_length", "n_positions", "n_active_tokens"), _LENGTHS),
    **dict.fromkeys(("max_context_length", "max_new_tokens"), _LENGTHS),
    **dict.fromkeys(("batch_size", "ctx_batch_size", "tkg_batch_size"), "shape.batch_size"),
    **dict.fromkeys(("max_batch_size", "spec_batch_size"), "shape.batch_size"),
    **dict.fromkeys(("kv_cache_batch_size", "is_continuous_batching"), "shape.batch_size"),
    **dict.fromkeys(("torch_dtype", "overrides_torch_dtype"), "target.dtype"),
    "tp_degree": "neuron.tp_degree and neuron.draft_tp_degree",
    "logical_nc_config": "neuron.logical_nc_config",
    **dict.fromkeys(("enable_bucketing", "buckets"), "neuron.bucketing"),
    "context_encoding_buckets": "neuron.context_encoding_buckets",
    "token_generation_buckets": "neuron.token_generation_buckets",
    "on_device_sampling_config": "neuron.sampling and neuron.sample_on_device",
    "save_sharded_checkpoint": "neuron.save_sharded_checkpoint",
    "speculation_length": "draft.num_draft_tokens",
    "enable_fused_speculation": "neuron.fused",
    **dict.fromkeys(("enable_eagle_speculation", "is_eagle_draft", "is_eagle3"), _METHOD),
    "enable_eagle_draft_input_norm": "the prepared draft's file",
    "token_tree_config": "draft.tree",
    "is_medusa": _METHOD,
    **dict.fromkeys(("medusa_speculation_length", "medusa_tree"), "draft.tree"),
    "num_medusa_heads": "the prepared draft's file",
    "on_cpu": "the backend: the reference backend is the one for CPUs",
}
SAMPLING_DECIDED_BY = {
    **dict.fromkeys(("do_sample", "dynamic"), "verification.rule"),
    "on_device_sampling_config": "neuron.sample_on_device",
}


@cache
def keyword_table() -> Mapping[str, Any]:
    """The recorded table: `releases`, and a table of keywords for each class."""
    text = resources.files("neuron_spec.platforms").joinpath(_TABLE).read_text(encoding="utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table


def recorded_releases() -> tuple[str, ...]:
    """SDK releases whose keywords are known, oldest first."""
    return tuple(keyword_table()["releases"])


def keywords(section: str, sdk: str) -> dict[str, Any]:
    """Name -> default of what a class takes in a release.

    Args:
        section: neuron_config, what a family adds to it (`FAMILY_SECTIONS`),
            on_device_sampling_config, or a keyword that is a table.
        sdk: an SDK release; one that is not recorded is taken as the newest that is.
    """
    return {
        name: entry["default"]
        for name, entry in keyword_table()[section].items()
        if release_number(sdk) >= release_number(entry.get("since", "0.0"))
    }


def faults_of(given: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for every keyword that is unknown, gone or of another type than its default,
    in tables of their own too."""
    for name, value in given.items():
        if name in _REMOVED:
            yield f"'{name}' is gone: {_REMOVED[name]}"
        elif name not in known:
            yield f"unknown keyword '{name}': {nearest(name, list(known))}"
        elif not _has_type_of(value, known[name]):
            yield f"{name}: expected {type(known[name]).__name__}, found {value!r}"
        elif name in _NESTED:
            yield from (f"{name}: {fault}" for fault in _faults_of_table(name, value))


def _faults_of_table(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"expected a table, found {value!r}"
        return
    yield from faults_of(value, keywords(name, recorded_releases()[-1]))  # the same in all


def _has_type_of(value: Any, default: Any) -> bool:
    """A null default says nothing about the type; an integer is good where a float is."""
    if default is None:
        return True
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default)


def release_number(sdk: str) -> tuple[int, ...]:
    """An SDK release in a form that can be compared: 2.9 comes before 2.28."""
    return tuple(int(part) for part in sdk.split("."))
