"""What two pools must share changes the hash; where things lie, and what may differ, does not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from neuron_spec.artifacts import (
    Ingredients,
    ModelRecord,
    NeuronRecord,
    compatibility_of,
    shared_by_pools,
)
from neuron_spec.artifacts.compatibility import CACHE_KEYWORDS, Shared
from neuron_spec.artifacts.manifest import FileEntry
from neuron_spec.platforms.nxdi_keywords import keyword_table
from neuron_spec.spec import BuildSpec

SHARED = Shared(
    backend="neuron", method="eagle", target={"w": "1"}, draft={"w": "2"}, num_draft_tokens=3,
    tree=None, tp_degree=4, positions=1024, cache_layout={"pa_block_size": 32}, dtype="bfloat16",
)  # fmt: skip
OTHERS: dict[str, Any] = {
    "backend": "reference", "method": "eagle3", "target": {"w": "9"}, "draft": {"w": "9"},
    "num_draft_tokens": 4, "tree": [[0], [1]], "tp_degree": 8, "positions": 2048,
    "cache_layout": {"pa_block_size": 64}, "dtype": "float16",
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(Shared)])
def test_every_ingredient_changes_the_hash(name: str) -> None:
    other = replace(SHARED, **{name: OTHERS[name]})
    assert compatibility_of(other) != compatibility_of(SHARED)
    assert compatibility_of(replace(other, **{name: getattr(SHARED, name)})) == compatibility_of(
        SHARED
    )


def hash_of(
    *,
    draft: dict[str, Any] | None = None,
    shape: dict[str, Any] | None = None,
    compiled: dict[str, Any] | None = None,
    digests: tuple[str, str] = ("1", "2"),
    place: str = "/models",
    **sections: Any,
) -> str:
    """Of an artifact compiled for Neuron."""
    spec = BuildSpec.model_validate(
        {
            "target": {"model": f"{place}/target"},
            "draft": {"method": "eagle", "model": f"{place}/draft", **(draft or {})},
            "shape": {"max_prompt_tokens": 64, "max_total_tokens": 128, **(shape or {})},
            **sections,
        }
    )
    models = {
        role: ModelRecord(
            source=f"{place}/{role}",
            directory=f"{place}/{role}",
            files=(FileEntry(name="weights", num_bytes=1, mtime_ns=len(place), sha256=digest),),
        )
        for role, digest in zip(("target", "draft"), digests, strict=True)
    }
    settings = {"tp_degree": 4, "seq_len": 132, "torch_dtype": "bfloat16", **(compiled or {})}
    neuron = NeuronRecord(
        instance="trn2.3xlarge", sdk="2.29", tp_degree=4, logical_nc_config=2, batch_size=1,
        graphs={}, config={"neuron_config": settings}, environment={}, holds_weights=False,
        compile_seconds=len(place),
    )  # fmt: skip
    ingredients = Ingredients("neuron", spec.model_dump(mode="json"), models, {"torch": place})
    return compatibility_of(shared_by_pools(ingredients, spec.num_draft_tokens, neuron))


@pytest.mark.parametrize(
    "change",
    [
        {"draft": {"method": "eagle3"}},
        {"draft": {"num_draft_tokens": 2}},
        {"draft": {"tree": [[0], [1], [0, 0]]}},
        {"compiled": {"tp_degree": 8}},
        {"compiled": {"seq_len": 256}},
        {"compiled": {"torch_dtype": "float32"}},
        {"digests": ("9", "2")},
        {"digests": ("1", "9")},
        *({"compiled": {name: "other"}} for name in CACHE_KEYWORDS),
    ],
    ids=str,
)
def test_what_pools_must_share_changes_it(change: dict[str, Any]) -> None:
    assert hash_of(**change) != hash_of()


@pytest.mark.parametrize(
    "change",
    [
        {"place": "/elsewhere/models"},
        {"shape": {"batch_size": 8}},
        {"shape": {"max_prompt_tokens": 32}},
        {"verification": {"rule": "rejection"}},
        {"compiled": {"context_encoding_buckets": [64]}},
        {"compiled": {"fused_qkv": True}},
        {"reference": {"dtype": "bfloat16"}},
    ],
    ids=str,
)
def test_what_may_differ_does_not(change: dict[str, Any]) -> None:
    assert hash_of(**change) == hash_of()


def test_the_keywords_of_the_cache_are_nxdis() -> None:
    assert set(CACHE_KEYWORDS) <= keyword_table()["neuron_config"].keys()
