"""The reasons name exactly what the fingerprint is made of."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_spec.artifacts import Ingredients, ModelRecord, changes, fingerprint_of
from neuron_spec.artifacts.manifest import FileEntry
from neuron_spec.spec import BuildSpec


def model_of(**digests: str) -> ModelRecord:
    files = tuple(
        FileEntry(name=name.replace("_", "."), num_bytes=1, mtime_ns=1, sha256=digest)
        for name, digest in digests.items()
    )
    return ModelRecord(source="s", directory="/d", files=files)


SPEC = BuildSpec.model_validate(
    {"target": {"model": "t"}, "draft": {"method": "eagle", "model": "d"}}
).model_dump(mode="json")
TARGET = model_of(config_json="1", weights="1")
BEFORE = Ingredients(
    "reference", SPEC, {"target": TARGET, "draft": model_of(weights="1")}, {"torch": "2.7"}
)


def spec_with(section: str, **values: Any) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    spec[section].update(values)
    return spec


def now(**fields: Any) -> Ingredients:
    return Ingredients(**{**vars(BEFORE), **fields})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (now(spec=spec_with("shape", batch_size=4)), ["shape.batch_size 1 -> 4"]),
        (now(spec=spec_with("draft", tree=[[0]])), ["draft.tree [] -> [[0]]"]),
        (
            now(models={**BEFORE.models, "target": model_of(config_json="1", weights="2")}),
            ["target weights"],
        ),
        (
            now(models={**BEFORE.models, "target": model_of(config_json="2", weights="1")}),
            ["target config.json"],
        ),
        (
            now(models={**BEFORE.models, "target": model_of(config_json="1", shard="1")}),
            ["target weights"],
        ),
        (now(models={"target": TARGET}), ["draft removed"]),
        (now(libraries={"torch": "2.8"}), ["torch 2.7 -> 2.8"]),
        (now(libraries={"torch": "2.7", "neuronx-cc": "2"}), ["neuronx-cc none -> 2"]),
        (now(environment={"NEURON_CC_FLAGS": "-O1"}), ["NEURON_CC_FLAGS none -> -O1"]),
        (now(backend="neuron"), ["backend reference -> neuron"]),
        (
            now(spec=spec_with("shape", batch_size=2), libraries={}),
            ["shape.batch_size 1 -> 2", "torch 2.7 -> none"],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else "",
)
def test_each_change_is_named(other: Ingredients, expected: list[str]) -> None:
    assert changes(BEFORE, other) == expected


def test_places_are_no_change() -> None:
    moved = TARGET.model_copy(update={"directory": "/elsewhere", "source": "other"})
    other = now(
        models={**BEFORE.models, "target": moved}, spec=spec_with("target", model="elsewhere")
    )
    assert changes(BEFORE, other) == []


_FIELDS = st.sampled_from(
    [
        ("shape", "batch_size"), ("shape", "max_total_tokens"), ("draft", "num_draft_tokens"),
        ("target", "model"), ("draft", "model"), ("target", "dtype"),
    ]
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    edits=st.lists(st.tuples(_FIELDS, st.integers(1, 3)), max_size=4),
    torch=st.sampled_from(["2.7", "2.8"]),
    flags=st.sampled_from([{}, {"NEURON_CC_FLAGS": "-O1"}]),
    weights=st.sampled_from("12"),
)
def test_reasons_and_fingerprint_agree(
    edits: list[Any], torch: str, flags: dict[str, str], weights: str
) -> None:
    spec = copy.deepcopy(SPEC)
    for (section, name), value in edits:
        spec[section][name] = value
    models = {**BEFORE.models, "draft": model_of(weights=weights)}
    other = Ingredients("reference", spec, models, {"torch": torch}, flags)
    is_same = fingerprint_of(other) == fingerprint_of(BEFORE)
    assert (changes(BEFORE, other) == []) == is_same
