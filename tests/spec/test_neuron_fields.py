"""The table [neuron]: what a user decides, with defaults that need no decision."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from neuron_spec.spec.neuron import NeuronSpec


def test_an_instance_is_all_that_has_to_be_said() -> None:
    assert NeuronSpec(instance="trn2.3xlarge").model_dump() == {
        "instance": "trn2.3xlarge", "sdk": "2.29", "tp_degree": 1, "draft_tp_degree": None,
        "logical_nc_config": None, "fused": True, "bucketing": True,
        "context_encoding_buckets": (), "token_generation_buckets": (),
        "sample_on_device": False, "sampling": {}, "save_sharded_checkpoint": False,
        "config": {}, "draft_config": {},
    }  # fmt: skip
    with pytest.raises(ValidationError, match="instance"):
        NeuronSpec.model_validate({})


@pytest.mark.parametrize(
    "fields",
    [
        {"sdk": "latest"},
        {"sdk": "2.29.1"},
        {"logical_nc_config": 3},
        {"tp_degree": 0},
        {"draft_tp_degree": 0},
        {"context_encoding_buckets": [256, 128]},
        {"context_encoding_buckets": [128, 128]},
        {"token_generation_buckets": [0, 128]},
        {"token_generation_buckets": [128], "bucketing": False},
        {"unknown": 1},
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NeuronSpec.model_validate({"instance": "trn2.3xlarge", **fields})
