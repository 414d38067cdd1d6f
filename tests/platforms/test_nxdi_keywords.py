"""The recorded keywords of NxDI, by release, and what is said about wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_spec.platforms.nxdi_keywords import (
    DECIDED_BY,
    SAMPLING_DECIDED_BY,
    faults_of,
    keyword_table,
    keywords,
    recorded_releases,
    release_number,
)


def test_the_table_names_its_source_and_its_releases() -> None:
    assert "0.9.0" in keyword_table()["source"] and "commit" in keyword_table()["source"]
    assert recorded_releases() == ("2.28", "2.29")


@pytest.mark.parametrize(("sdk", "count"), [("2.28", 137), ("2.29", 138), ("2.32", 138)])
def test_releases_have_the_keywords_of_their_source(sdk: str, count: int) -> None:
    """Counts of `kwargs.pop` in NeuronConfig at commits cd3abf3 and c63afe0."""
    assert len(keywords("neuron_config", sdk)) == count
    assert ("enable_ve_data_parallel" in keywords("neuron_config", sdk)) == (count == 138)


def test_experts_and_the_sampler_have_their_own() -> None:
    assert "capacity_factor" in keywords("moe_neuron_config", "2.29")
    assert keywords("on_device_sampling_config", "2.29")["global_topk"] == 256
    assert not keywords("moe_neuron_config", "2.29").keys() & keywords("neuron_config", "2.29")


def test_what_the_spec_decides_is_a_keyword() -> None:
    assert DECIDED_BY.keys() <= keywords("neuron_config", "2.28").keys()
    assert SAMPLING_DECIDED_BY.keys() <= keywords("on_device_sampling_config", "2.28").keys()


def test_releases_are_compared_as_numbers() -> None:
    assert release_number("2.9") < release_number("2.28") < release_number("2.29")


KNOWN: dict[str, Any] = {"flag": False, "count": 1, "ratio": 1.0, "name": "x", "any": None}


@pytest.mark.parametrize(
    "given",
    [{"flag": True}, {"count": 2}, {"ratio": 2}, {"ratio": 0.5}, {"name": "y"}, {"any": [1]}, {}],
)
def test_values_of_the_defaults_type_are_right(given: dict[str, Any]) -> None:
    assert list(faults_of(given, KNOWN)) == []


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"flga": True}, "unknown keyword 'flga': did you mean 'flag'?"),
        ({"flag": 1}, "flag: expected bool, found 1"),
        ({"count": True}, "count: expected int, found True"),
        ({"count": 1.0}, "count: expected int, found 1.0"),
        ({"ratio": True}, "ratio: expected float, found True"),
        ({"name": 3}, "name: expected str, found 3"),
        ({"logical_neuron_cores": 2}, "'logical_neuron_cores' is gone: renamed"),
    ],
)
def test_wrong_keywords_are_told(given: dict[str, Any], fault: str) -> None:
    faults = list(faults_of(given, KNOWN))
    assert len(faults) == 1 and faults[0].startswith(fault)
