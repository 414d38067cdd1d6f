"""Spec -> NxDI's arguments, against configurations that NxDI itself parsed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN

from neuron_spec.backends.neuron.config import NxdiConfig, render
from neuron_spec.backends.neuron.facts import CheckpointFacts, DraftFacts, TargetFacts
from neuron_spec.errors import SpecError
from neuron_spec.platforms.nxdi_keywords import keyword_table
from neuron_spec.spec import BuildSpec

RECORDED: dict[str, Any] = json.loads((GOLDEN / "nxdi_configs.json").read_text())
LLAMA = TargetFacts("llama", "target")


def make_spec(method: str = "none", **sections: Any) -> BuildSpec:
    """A spec of that method; sections are laid over small defaults."""
    has_model = method in ("model", "medusa", "hydra", "eagle", "eagle3")
    defaults: dict[str, Any] = {
        "target": {"model": "some/llama", "dtype": "float32"},
        "draft": {"method": method, **({"model": "some/draft-llama"} if has_model else {})},
        "shape": {"max_prompt_tokens": 59, "max_total_tokens": 59},
        "neuron": {"instance": "trn1.32xlarge", "sdk": "2.29", "bucketing": False},
        "verification": {},
    }
    merged = {name: {**table, **sections.get(name, {})} for name, table in defaults.items()}
    return BuildSpec.model_validate(merged)


def faults_of(spec: BuildSpec, facts: CheckpointFacts | None = None) -> str:
    with pytest.raises(SpecError) as caught:
        render(spec, facts or CheckpointFacts(LLAMA))
    return str(caught.value)


def constructed(arguments: dict[str, Any]) -> dict[str, Any]:
    """The attributes that NeuronConfig(**arguments) has, by the recorded table and the rules of its
    constructor for what follows from other settings; platform trn1."""
    table = keyword_table()
    config = {name: entry["default"] for name, entry in table["neuron_config"].items()}
    config |= RECORDED["default"] | arguments
    length, batch = config["seq_len"], config["batch_size"]
    free = arguments.get("max_context_length", length)
    followers = {
        **dict.fromkeys(("n_active_tokens", "n_positions", "max_length", "pa_block_size"), length),
        "max_context_length": length,
        "max_new_tokens": length - free or None,
        "buckets": [length],
        **dict.fromkeys(("ctx_batch_size", "tkg_batch_size", "max_batch_size"), batch),
        **dict.fromkeys(("spec_batch_size", "kv_cache_batch_size", "pa_num_blocks"), batch),
        "overrides_torch_dtype": "torch_dtype" in arguments,
        "world_size": config["tp_degree"],
        "local_ranks_size": config["tp_degree"],
    }
    config |= {name: value for name, value in followers.items() if name not in arguments}
    config["enable_fused_speculation"] |= config["enable_eagle_speculation"]
    config["enable_token_tree"] = config["token_tree_config"] is not None
    tiles = length > 128 and length % 128 == 0
    config["kv_cache_tiling"] = tiles and config["enable_fused_speculation"]
    if config["on_device_sampling_config"] is not None:
        defaults = {n: e["default"] for n, e in table["on_device_sampling_config"].items()}
        defaults["top_k_kernel_enabled"] = False
        config["on_device_sampling_config"] = defaults | config["on_device_sampling_config"]
    config.pop("logical_neuron_cores")
    return config


def differences(ours: dict[str, Any], recorded: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    theirs = RECORDED["default"] | recorded
    assert ours.keys() == theirs.keys()
    return {name: (ours[name], theirs[name]) for name in theirs if ours[name] != theirs[name]}


SAMPLING = {"neuron": {"instance": "trn1.32xlarge", "sdk": "2.29", "bucketing": False,
                       "sampling": {"temperature": 0.7, "top_k": 50}}}  # fmt: skip
UNFUSED = {"neuron": {"fused": False}}
PATHS = [[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]

# Recorded name -> the spec that gives it, what is known of the draft, and the keys in which ours is
# another value on purpose: (ours, recorded), with the reason in the comment.
CASES: dict[str, tuple[BuildSpec, DraftFacts, dict[str, tuple[Any, Any]]]] = {
    "vanilla_target": (make_spec("model", **UNFUSED), DraftFacts("llama", "draft"), {}),
    "fused_plain_draft": (make_spec("model", **SAMPLING), DraftFacts("llama", "draft"), {}),
    "eagle": (
        make_spec("eagle", **SAMPLING), DraftFacts("llama", "eagle1", has_input_norm=False), {},
    ),
    "eagle_input_norm": (
        make_spec("eagle", **SAMPLING), DraftFacts("llama", "eagle1_norm", has_input_norm=True), {},
    ),
    "eagle3": (make_spec("eagle3", **SAMPLING), DraftFacts("llama", "eagle3"), {}),
    "eagle_token_tree": (
        make_spec(
            "eagle", draft={"tree": PATHS}, shape={"max_prompt_tokens": 57, "max_total_tokens": 57},
            **SAMPLING,
        ),
        DraftFacts("llama", "eagle1", has_input_norm=False),
        # Recorded for parsing only: the graph's masks need a length of 7, the tree's nodes.
        {"speculation_length": (7, 5)},
    ),
    "medusa": (
        make_spec(
            "medusa", draft={"tree": [[0], [1], [0, 0]]},
            shape={"max_prompt_tokens": 59, "max_total_tokens": 59},
            neuron={"sampling": {"top_k": 10}},
        ),
        DraftFacts("llama", "medusa", num_medusa_heads=4),
        {
            # Recorded for parsing only: 3 nodes, the root, and the node at position 0.
            "medusa_speculation_length": (5, 64),
            # None was recorded, and the loop of NxDI's adapter cannot count to it.
            "max_new_tokens": (58, None),
            # 256 was recorded, and NxD's tables take 10 candidates a head.
            "on_device_sampling_config": (
                {"global_topk": 10}, {"global_topk": 256},
            ),
        },
    ),
}  # fmt: skip


def rendered(name: str) -> NxdiConfig:
    spec, draft, _ = CASES[name]
    return render(spec, CheckpointFacts(LLAMA, draft))


def test_every_recorded_configuration_has_a_case() -> None:
    assert CASES.keys() | {"vanilla_draft"} == RECORDED["configs"].keys()


@pytest.mark.parametrize("name", CASES)
def test_the_target_is_configured_as_recorded(name: str) -> None:
    ours = constructed(rendered(name).neuron_arguments)
    expected = dict(CASES[name][2])
    found = differences(ours, RECORDED["configs"][name]["target"])
    if "on_device_sampling_config" in expected:
        sampling, recorded = found.pop("on_device_sampling_config")
        changed = {key for key in recorded if sampling[key] != recorded[key]}
        parts = tuple({key: part[key] for key in changed} for part in (sampling, recorded))
        assert parts == expected.pop("on_device_sampling_config")
    assert found == expected


@pytest.mark.parametrize("name", [name for name in CASES if "draft" in RECORDED["configs"][name]])
def test_the_draft_is_configured_as_recorded(name: str) -> None:
    config, recorded = rendered(name), RECORDED["configs"][name]
    assert config.draft is not None
    changes = {key: setting.value for key, setting in config.draft.changes.items()}
    found = differences(constructed(config.neuron_arguments) | changes, recorded["draft"])
    assert found == CASES[name][2]
    assert config.fused_spec_arguments == recorded["fused_spec_config"]


def test_an_unfused_draft_is_configured_as_recorded() -> None:
    config = rendered("vanilla_target")
    assert config.draft is not None and config.fused_spec_arguments is None
    changes = {key: setting.value for key, setting in config.draft.changes.items()}
    ours = constructed(config.neuron_arguments) | changes
    assert differences(ours, RECORDED["configs"]["vanilla_draft"]["target"]) == {}


def test_a_target_alone_differs_from_the_default_in_its_lengths_only() -> None:
    spec = make_spec(shape={"max_prompt_tokens": 128, "max_total_tokens": 128})
    config = render(spec, CheckpointFacts(LLAMA))
    found = differences(constructed(config.neuron_arguments), {})
    assert found == {"overrides_torch_dtype": (True, False)}  # float32 was taken from config.json
    assert config.draft is None and config.sampling is None and config.assumptions == ()


def test_every_argument_is_a_keyword_of_nxdi() -> None:
    table = keyword_table()
    for name in CASES:
        config = rendered(name)
        assert config.neuron_config.keys() <= table["neuron_config"].keys()
        assert (config.sampling or {}).keys() <= table["on_device_sampling_config"].keys()
        if config.draft:
            assert config.draft.changes.keys() <= table["neuron_config"].keys()


def test_the_recorded_keywords_are_the_recorded_attributes() -> None:
    derived = {"is_prefill_stage", "enable_token_tree", "is_chunked_prefill", "kv_cache_tiling",
               "is_hidden_dim_shuffled", "is_intermediate_dim_shuffled", "tile_cc",
               "kv_cache_update_with_kernel", "enable_long_context_mode"}  # fmt: skip
    attributes = RECORDED["default"].keys() - derived
    assert keyword_table()["neuron_config"].keys() == attributes | {"logical_neuron_cores"}


# What the fused graphs verify


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_rejection_samples_on_the_device_with_each_requests_options(method: str) -> None:
    spec = make_spec(method, verification={"rule": "rejection"})
    sampling = render(spec, CheckpointFacts(LLAMA)).sampling
    assert sampling is not None
    assert (sampling["do_sample"].value, sampling["dynamic"].value) == (True, True)


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("model", {}),
        ("medusa", {}),
        ("eagle", {"draft": {"tree": PATHS}}),
    ],
)
def test_greedy_graphs_refuse_other_rules(method: str, sections: dict[str, Any]) -> None:
    spec = make_spec(method, verification={"rule": "rejection"}, **sections)
    assert f"the fused graph of '{method}' can do greedy only" in faults_of(spec)


@pytest.mark.parametrize("rule", ["sample-match", "typical"])
def test_eagle_can_do_greedy_and_rejection_only(rule: str) -> None:
    fault = faults_of(make_spec("eagle", verification={"rule": rule}))
    assert f"rule '{rule}'" in fault and "greedy and rejection only" in fault


@pytest.mark.parametrize("rule", ["greedy", "rejection", "sample-match", "typical"])
def test_the_host_verifies_by_any_rule_on_logits(rule: str) -> None:
    for spec in (
        make_spec("model", verification={"rule": rule}, **UNFUSED),
        make_spec("ngram", verification={"rule": rule}),
    ):
        config = render(spec, CheckpointFacts(LLAMA))
        assert config.sampling is None and not config.is_fused
        assert config.neuron_config["speculation_length"].value == 5


def test_a_target_alone_may_sample_on_the_device() -> None:
    spec = make_spec(neuron={"sample_on_device": True}, verification={"rule": "sample-match"})
    sampling = render(spec, CheckpointFacts(LLAMA)).sampling
    assert sampling is not None and sampling["do_sample"].value is True


def test_a_host_that_verifies_needs_logits() -> None:
    spec = make_spec("model", neuron={"fused": False, "sample_on_device": True})
    assert "needs logits" in faults_of(spec)
    spec = make_spec("ngram", neuron={"sampling": {"global_topk": 64}})
    assert "nothing is sampled on the device" in faults_of(spec)


def test_drafts_are_not_drawn_on_the_device() -> None:
    sections: dict[str, Any] = {"draft": {"sampled": True}, "verification": {"rule": "rejection"}}
    assert "draft.sampled" in faults_of(make_spec("eagle", **sections))
    unfused = make_spec("model", **sections, **UNFUSED)
    assert render(unfused, CheckpointFacts(LLAMA)).draft is not None


# Methods and trees


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (make_spec("hydra"), "draft.method 'hydra'"),
        (make_spec("mtp"), "draft.method 'mtp'"),
        (make_spec("early-exit", draft={"exit_layer": 2}), "draft.method 'early-exit'"),
        (make_spec("eagle", draft={"dynamic_tree": {}}), "draft.dynamic_tree"),
        (make_spec("model", draft={"vocabulary": "intersection"}), "draft.vocabulary"),
        (make_spec("eagle3", draft={"tree": PATHS}), "draft.tree"),
        (make_spec("model", draft={"tree": PATHS}), "draft.tree"),
    ],
)
def test_what_nxdi_has_not_is_refused_by_name(spec: BuildSpec, fault: str) -> None:
    assert fault in faults_of(spec)


def test_a_tree_with_leaves_of_several_depths_is_refused_for_eagle_only() -> None:
    tree = {"tree": [[0], [1], [0, 0]]}
    assert "leaves of different depth" in faults_of(make_spec("eagle", draft=tree))
    assert render(make_spec("medusa", draft=tree), CheckpointFacts(LLAMA))


def test_a_tree_that_skips_a_sibling_is_refused_for_eagle_only() -> None:
    tree = {"tree": [[0], [2]]}
    assert "leaves out a better sibling" in faults_of(make_spec("eagle", draft=tree))
    assert render(make_spec("medusa", draft=tree), CheckpointFacts(LLAMA))


def test_a_medusa_tree_fits_the_heads_and_the_candidates() -> None:
    heads = CheckpointFacts(LLAMA, DraftFacts(num_medusa_heads=1))
    spec = make_spec("medusa", draft={"tree": [[0], [0, 0]]})
    assert "2 levels deep, the draft has 1 Medusa heads" in faults_of(spec, heads)
    assert "rank 10" in faults_of(make_spec("medusa", draft={"tree": [[10]]}))
    assert render(make_spec("medusa", draft={"tree": [[9]]}), heads)


def test_fewer_drafts_than_the_tree_has_are_its_first_nodes() -> None:
    spec = make_spec("medusa", draft={"tree": PATHS, "num_draft_tokens": 3})
    arguments = render(spec, CheckpointFacts(LLAMA)).neuron_arguments
    assert arguments["medusa_tree"] == PATHS[:3]
    assert arguments["medusa_speculation_length"] == 5


def test_a_medusa_chain_is_a_tree_of_one_branch() -> None:
    config = render(make_spec("medusa", draft={"num_draft_tokens": 3}), CheckpointFacts(LLAMA))
    assert config.neuron_config["medusa_tree"].value == [[0], [0, 0], [0, 0, 0]]
    assert config.neuron_config["medusa_speculation_length"].value == 5
    assert config.neuron_config["num_medusa_heads"].value == 3
    assert any("num_medusa_heads 3" in assumption for assumption in config.assumptions)


def test_medusa_cannot_have_other_candidates() -> None:
    spec = make_spec("medusa", neuron={"sampling": {"global_topk": 64}})
    assert "neuron.sampling.global_topk: has to be 10" in faults_of(spec)


# Classes


def named(config: NxdiConfig) -> tuple[str, str | None]:
    return config.target.causal_lm, config.draft.classes.causal_lm if config.draft else None


def test_an_eagle_draft_is_llamas_whatever_the_target() -> None:
    config = render(make_spec("eagle"), CheckpointFacts(TargetFacts("qwen3", "t")))
    assert named(config) == ("NeuronQwen3ForCausalLM", "NeuronLlamaForCausalLM")
    fused = config.fused_spec_arguments
    assert fused is not None and config.draft is not None
    assert fused["worker_cls"]["__name__"] == "NeuronQwen3Model"
    assert fused["draft_model_cls"] == {
        "__module__": "neuronx_distributed_inference.models.llama.modeling_llama",
        "__name__": "NeuronLlamaForCausalLM",
    }
    assert config.draft.changes["attn_cls"].value == "NeuronLlamaAttention"
    same = render(make_spec("eagle"), CheckpointFacts(LLAMA))
    assert same.draft is not None and "attn_cls" not in same.draft.changes


def test_without_a_checkpoint_the_name_is_what_is_assumed() -> None:
    config = render(make_spec("model", target={"model": "Qwen/Qwen3-32B"}))
    assert named(config) == ("NeuronQwen3ForCausalLM", "NeuronLlamaForCausalLM")
    assert config.assumptions == (
        "target model_type 'qwen3': by its name; config.json is not here and decides",
        "draft model_type 'llama': by its name; config.json is not here and decides",
    )
    fault = faults_of(make_spec(target={"model": "../models/ours"}), CheckpointFacts())
    assert "target.model '../models/ours'" in fault and "model_type" in fault


def test_a_family_that_cannot_speculate_is_refused() -> None:
    fault = faults_of(make_spec(), CheckpointFacts(TargetFacts("llama4", "t")))
    assert "'llama4'" in fault and "qwen3_moe" in fault


def test_mistral_runs_in_the_llama_class_where_its_own_cannot() -> None:
    """Both apply sliding_window: whether a window bears the way of drafting is the preflight's."""
    facts = CheckpointFacts(TargetFacts("mistral", "t"), DraftFacts("mistral", "d"))
    assert named(render(make_spec("eagle"), facts))[0] == "NeuronMistralForCausalLM"
    for spec in (make_spec("medusa"), make_spec("eagle", neuron={"sdk": "2.28"})):
        assert named(render(spec, facts))[0] == "NeuronLlamaForCausalLM"
    pair = make_spec("model", neuron={"sdk": "2.28"})
    assert render(pair, facts).draft.classes.causal_lm == "NeuronLlamaForCausalLM"  # type: ignore[union-attr]
    gemma = CheckpointFacts(LLAMA, DraftFacts("gemma3", "d"))
    assert "'gemma3', of the draft, since 2.29" in faults_of(pair, gemma)


def test_medusa_heads_need_the_llama_class() -> None:
    fault = faults_of(make_spec("medusa"), CheckpointFacts(TargetFacts("qwen3", "t")))
    assert "'qwen3' class has no Medusa heads" in fault


# Pass-through


def test_a_misspelt_keyword_is_told_the_nearest() -> None:
    spec = make_spec(
        neuron={"config": {"fused_qvk": True}, "sampling": {"globaltopk": 3}, "fused": True},
        draft={"method": "model", "model": "d-llama"},
    )
    fault = faults_of(spec)
    assert "neuron.config: unknown keyword 'fused_qvk': did you mean 'fused_qkv'?" in fault
    assert "neuron.sampling: unknown keyword 'globaltopk': did you mean 'global_topk'?" in fault


def test_keywords_belong_to_releases_and_to_experts() -> None:
    new = {"sdk": "2.28", "config": {"enable_ve_data_parallel": True}}
    assert "unknown keyword 'enable_ve_data_parallel'" in faults_of(make_spec(neuron=new))
    assert render(make_spec(neuron={**new, "sdk": "2.29"}), CheckpointFacts(LLAMA))
    experts = make_spec(neuron={"config": {"capacity_factor": 1.0}})
    assert "unknown keyword 'capacity_factor'" in faults_of(experts)
    assert render(experts, CheckpointFacts(TargetFacts("mixtral", "t")))


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"fused_qkv": "yes"}, "fused_qkv: expected bool, found 'yes'"),
        ({"cp_degree": True}, "cp_degree: expected int, found True"),
        ({"trace_tokengen_model": False}, "'trace_tokengen_model' is gone"),
        ({"speculation_length": 5}, "decided by draft.num_draft_tokens"),
        ({"seq_len": 5}, "decided by shape.max_prompt_tokens and shape.max_total_tokens"),
        ({"tp_degree": 1}, "decided by neuron.tp_degree"),
        ({"is_medusa": False}, "decided by draft.method"),
    ],
)
def test_a_keyword_that_cannot_be_passed_is_told_why(config: dict[str, Any], fault: str) -> None:
    assert fault in faults_of(make_spec(neuron={"config": config}))


def test_all_faults_are_told_at_once() -> None:
    spec = make_spec(
        "model",
        neuron={"config": {"fused_qvk": True, "seq_len": 1}},
        verification={"rule": "sample-match"},
    )
    fault = faults_of(spec)
    for part in ("fused_qvk", "neuron.config.seq_len", "rule 'sample-match'"):
        assert part in fault


def test_what_eagle3_needs_cannot_be_switched_off() -> None:
    off = {"config": {"sequence_parallel_enabled": False}}
    assert "has to be True here" in faults_of(make_spec("eagle3", neuron=off))
    assert "has to be False here" in faults_of(
        make_spec("eagle3", neuron={"draft_config": {"sequence_parallel_enabled": True}})
    )
    assert render(make_spec("eagle", neuron=off), CheckpointFacts(LLAMA))


def test_settings_reach_the_target_and_the_drafts_copy() -> None:
    spec = make_spec(
        "model",
        neuron={
            "tp_degree": 8,
            "draft_tp_degree": 4,
            "config": {"cast_type": "as-declared", "draft_model_modules_to_not_convert": ["lm"]},
            "draft_config": {"mlp_kernel_enabled": False},
            "save_sharded_checkpoint": True,
            "logical_nc_config": 2,
        },
    )
    config = render(spec, CheckpointFacts(LLAMA))
    expected = {
        "tp_degree": 8, "cast_type": "as-declared", "save_sharded_checkpoint": True,
        "logical_nc_config": 2,
    }  # fmt: skip
    arguments = config.neuron_arguments
    assert {name: arguments[name] for name in expected} == expected
    assert config.draft is not None
    changes = {name: setting.value for name, setting in config.draft.changes.items()}
    assert changes == {
        "mlp_kernel_enabled": False, "speculation_length": 0, "enable_fused_speculation": False,
        "tp_degree": 4, "modules_to_not_convert": ["lm"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("instance", "expected"), [("trn1.2xlarge", 1), ("inf2.xlarge", 1), ("trn2.3xlarge", 2)]
)
def test_cores_are_grouped_as_the_platform_does(instance: str, expected: int) -> None:
    config = render(make_spec(neuron={"instance": instance}), CheckpointFacts(LLAMA))
    assert config.neuron_config["logical_nc_config"].value == expected


def test_several_requests_are_encoded_one_by_one() -> None:
    arguments = render(make_spec(shape={"batch_size": 4}), CheckpointFacts(LLAMA)).neuron_arguments
    assert arguments["is_continuous_batching"] is True
    sizes = [arguments[name] for name in ("batch_size", "ctx_batch_size", "tkg_batch_size")]
    assert sizes == [4, 1, 4]


def test_rendering_needs_no_torch_and_no_nxdi() -> None:
    code = (
        "import sys; from neuron_spec.spec import load_spec;"
        "from neuron_spec.backends.neuron.config import render;"
        "from neuron_spec.backends.neuron.reading import facts_here;"
        f"spec = load_spec({str(COMPILE / 'llama-3.1-8b-eagle3.trn2.toml')!r});"
        "render(spec, facts_here(spec));"
        "print({'torch', 'transformers', 'neuronx_distributed_inference'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, "set()"), result.stderr


def test_no_spec_without_a_neuron_table() -> None:
    spec = make_spec().model_copy(update={"neuron": None})
    assert "[neuron]" in faults_of(spec)


COMPILE = Path(__file__).parents[3] / "compile"
