"""What a spec may pass through, by release and by the target's family."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_spec.platforms.nxdi_models import family_of
from neuron_spec.platforms.nxdi_pass_through import family_keywords, pass_through_faults


def messages(config: dict[str, Any], model_type: str | None, sdk: str = "2.29") -> list[str]:
    family = family_of(model_type) if model_type else None
    tables = {"config": config, "draft_config": {}, "sampling": {}}
    return [fault.message for fault in pass_through_faults(tables, sdk, family)]


@pytest.mark.parametrize(
    ("keyword", "value", "knowing", "ignorant"),
    [
        ("capacity_factor", 1.0, ("mixtral", "qwen3_moe", "gpt_oss", None), ("llama", "gemma3")),
        ("router_act_fn", "sigmoid", ("mixtral", "gpt_oss", None), ("llama",)),
        ("router_dtype", "bfloat16", ("qwen3_moe", "gpt_oss", None), ("qwen3",)),
        ("sliding_window_attention_dp_degree", 2, ("gpt_oss", None), ("qwen3_moe", "mistral")),
        ("router_config", {"act_fn": "sigmoid", "dtype": "float32"}, ("gpt_oss",), ("llama",)),
        ("hybrid_sharding_config", {"moe_tkg_ep_degree": 4}, ("qwen3_moe",), ("llama",)),
        ("blockwise_matmul_config", {"block_size": 256}, ("mixtral",), ("llama",)),
    ],
)
def test_families_know_their_own(
    keyword: str, value: Any, knowing: tuple[str | None, ...], ignorant: tuple[str, ...]
) -> None:
    for family in knowing:
        assert messages({keyword: value}, family) == []
    for family in ignorant:
        (message,) = messages({keyword: value}, family)
        assert message.startswith(f"neuron.config: unknown keyword '{keyword}'")


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"router_config": {"act": "sigmoid"}},
         "router_config: unknown keyword 'act': did you mean 'act_fn'?"),
        ({"router_config": {"dtype": 32}}, "router_config: dtype: expected str, found 32"),
        ({"router_config": "sigmoid"}, "router_config: expected a table, found 'sigmoid'"),
        ({"router_dtype": 32}, "router_dtype: expected str, found 32"),
        ({"blockwise_matmul_config": {"block_sice": 1}},
         "blockwise_matmul_config: unknown keyword 'block_sice': did you mean 'block_size'?"),
        ({"blockwise_matmul_config": {"block_size": True}},
         "blockwise_matmul_config: block_size: expected int, found True"),
        ({"hybrid_sharding_config": {"moe_tp_degree": 2}},
         "hybrid_sharding_config: unknown keyword 'moe_tp_degree': did you mean"),
    ],
)  # fmt: skip
def test_tables_are_looked_into(config: dict[str, Any], fault: str) -> None:
    """NxD takes what it knows out of them, and does not mention the rest."""
    (message,) = messages(config, "gpt_oss")
    assert message.startswith(f"neuron.config: {fault}")


def test_what_another_field_decides_names_it() -> None:
    tables: dict[str, dict[str, Any]] = {
        "config": {"seq_len": 5},
        "draft_config": {"tp_degree": 1},
        "sampling": {"do_sample": True, "globaltopk": 1},
    }
    faults = list(pass_through_faults(tables, "2.29", None))
    assert [(f.section, f.name, f.decided_by) for f in faults] == [
        ("neuron.config", "seq_len", "shape.max_prompt_tokens and shape.max_total_tokens"),
        ("neuron.draft_config", "tp_degree", "neuron.tp_degree and neuron.draft_tp_degree"),
        ("neuron.sampling", "do_sample", "verification.rule"),
        ("neuron.sampling", "globaltopk", ""),
    ]


def test_no_family_has_another_ones_keyword_twice() -> None:
    for sdk, more in (("2.28", 0), ("2.29", 1)):
        llama = family_keywords(sdk, family_of("llama"))
        assert len(llama) == 137 + more
        assert len(family_keywords(sdk, family_of("mixtral"))) == len(llama) + 25
        assert family_keywords(sdk, family_of("gpt_oss")) == family_keywords(sdk, None)
