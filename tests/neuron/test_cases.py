"""The builds of the smoke tests pass the preflight on every kind of instance that may run them."""

from __future__ import annotations

from pathlib import Path

import pytest
from neuron_smoke import CASES, Place, write_spec

from neuron_spec import check, load_spec, prepare

PLACES = [
    Place("inf2.xlarge", "2.28"),
    Place("trn1.2xlarge", "2.28"),
    Place("trn2.3xlarge", "2.29"),
    Place("trn2.48xlarge", "2.29"),
]


@pytest.mark.parametrize("name", CASES)
def test_a_build_can_be_compiled_on_every_instance(name: str, tmp_path: Path) -> None:
    spec = load_spec(write_spec(tmp_path / name, CASES[name], PLACES[0]))
    prepared = prepare(spec, tmp_path / "prepared")
    assert spec.neuron is not None
    for place in PLACES:
        neuron = spec.neuron.model_copy(update={"instance": place.instance, "sdk": place.sdk})
        findings = check(spec.model_copy(update={"neuron": neuron}), prepared)
        errors = [f for f in findings if f.severity == "error" and f.concerns("neuron")]
        assert errors == [], place
