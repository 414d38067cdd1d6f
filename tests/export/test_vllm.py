"""Specs -> commands for vLLM; the expectations are written down here, not computed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_spec.backends.neuron.config import render
from neuron_spec.errors import SpecError
from neuron_spec.export.handover import Handover, Model, Models
from neuron_spec.export.vllm import for_vllm
from neuron_spec.export.vllm_neuron import for_vllm_neuron
from neuron_spec.export.vllm_nxdi import for_vllm_nxdi
from neuron_spec.spec import BuildSpec, load_spec

COMPILE = Path(__file__).parents[2] / "compile"
SPECS = {path.stem: load_spec(path) for path in sorted(COMPILE.glob("*.toml"))}
MODELS = Models(Model("t"), Model("d"))

# spec -> method and k on GPUs, over NxDI, with the plugin; None: the target alone; "": refused.
Speculation = tuple[str, int] | None | str
EXPECTED: dict[str, tuple[Speculation, Speculation, Speculation]] = {
    "llama-3.1-8b.trn2": (None, None, None),
    "llama-3.1-8b-eagle.trn2": (("eagle", 4), ("eagle", 4), ""),
    "llama-3.1-8b-eagle-tree.trn2": (("eagle", 3), ("eagle", 10), ""),
    "llama-3.1-8b-eagle3.trn2": (("eagle3", 3), ("eagle3", 3), ("eagle3", 3)),
    "llama-3.1-70b-eagle.trn2": (("eagle", 4), ("eagle", 4), ""),
    "llama-3.3-70b-model.trn2": (("draft_model", 6), "", ""),
    "qwen3-32b-model.trn2": (("draft_model", 4), "", ""),
    "llama-3.1-8b-model.trn1": (("draft_model", 4), "", ""),
    "smollm2-135m-eagle.inf2": (("eagle", 4), ("eagle", 4), ""),
    "vicuna-7b-medusa.inf2": (("medusa", 4), "", ""),
    "smollm2-135m.cpu": (None, "", ""),
    "smollm2-135m-eagle.cpu": (("eagle", 4), "", ""),
    "smollm2-135m-eagle-lookup.cpu": (("eagle", 4), "", ""),
    "smollm2-135m-eagle3.cpu": (("eagle3", 4), "", ""),
    "smollm2-135m-early-exit.cpu": ("", "", ""),
    "smollm2-135m-medusa.cpu": (("medusa", 4), "", ""),
    "smollm2-135m-model.cpu": (("draft_model", 4), "", ""),
    "smollm2-135m-ngram.cpu": (("ngram", 5), "", ""),
    "smollm2-135m-suffix.cpu": (("suffix", 8), "", ""),
}


# Fields of SpeculativeConfig that a user may set (vllm/config/speculative.py, 002e77c), and of the
# vLLM Neuron plugin's neuron_config (reference-configuration.md, 43a8962): those that concern us.
SPECULATIVE_KEYS = {
    "num_speculative_tokens", "model", "method", "draft_tensor_parallel_size", "max_model_len",
    "revision", "use_heterogeneous_vocab", "prompt_lookup_max", "prompt_lookup_min",
    "num_speculative_tokens_per_batch_size", "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob", "rejection_sample_method", "draft_sample_method",
}  # fmt: skip
PLUGIN_KEYS = {
    "num_batched_tokens_buckets", "num_seqs_buckets", "kv_segment_size_buckets",
    "decode_context_length_buckets", "on_device_sampling_config", "quantization",
}  # fmt: skip


def gpu(spec: BuildSpec) -> Handover:
    return for_vllm(spec, MODELS)


def nxdi(spec: BuildSpec) -> Handover:
    return for_vllm_nxdi(spec, MODELS, "/compiled")


def plugin(spec: BuildSpec) -> Handover:
    return for_vllm_neuron(spec, MODELS, "/compiled")


SYSTEMS = (gpu, nxdi, plugin)


def make_spec(method: str = "eagle3", **sections: Any) -> BuildSpec:
    has_model = method in ("model", "medusa", "hydra", "eagle", "eagle3")
    draft = {"method": method, **({"model": "some/draft-llama"} if has_model else {})}
    tables: dict[str, Any] = {
        "target": {"model": "some/llama"},
        "shape": {"max_prompt_tokens": 512, "max_total_tokens": 1024},
        "neuron": {"instance": "trn2.48xlarge", "tp_degree": 8},
        **{name: table for name, table in sections.items() if name != "draft"},
        "draft": {**draft, **sections.get("draft", {})},
    }
    return BuildSpec.model_validate(tables)


def speculation(handover: Handover) -> dict[str, Any]:
    config: dict[str, Any] = handover.options["--speculative-config"]
    assert config.keys() <= SPECULATIVE_KEYS
    return config


def lost(handover: Handover) -> str:
    return "\n".join(f"{loss.field}: {loss.reason}" for loss in handover.losses)


def test_every_spec_of_compile_has_its_expectation() -> None:
    assert set(EXPECTED) == set(SPECS)


@pytest.mark.parametrize("index", range(3), ids=["gpu", "nxdi", "plugin"])
@pytest.mark.parametrize("name", EXPECTED)
def test_method_and_length_of_every_spec(name: str, index: int) -> None:
    expected, export = EXPECTED[name][index], SYSTEMS[index]
    if expected == "":
        with pytest.raises(SpecError, match=r"mend: "):
            export(SPECS[name])
        return
    handover = export(SPECS[name])
    if expected is None:
        assert "--speculative-config" not in handover.options
        return
    config = speculation(handover)
    assert (config["method"], config["num_speculative_tokens"]) == expected


@pytest.mark.parametrize("export", SYSTEMS)
def test_what_is_pasted_is_what_json_says(export: Any) -> None:
    handover = export(SPECS["llama-3.1-8b-eagle3.trn2"])
    words = shlex.split(handover.shell.replace("\\\n", " "))
    variables = [f"{name}={value}" for name, value in handover.environment.items()]
    assert words == [*variables, *handover.arguments]
    data = json.loads(json.dumps(handover.as_dict()))
    assert data["command"] == list(handover.arguments)
    for option, value in data["options"].items():
        given = data["command"][data["command"].index(option) + 1 :]
        if isinstance(value, dict):
            assert json.loads(given[0]) == value
        elif value is not None:
            assert given[0] == str(value)


@pytest.mark.parametrize("export", SYSTEMS)
def test_lengths_batch_and_type(export: Any) -> None:
    spec = make_spec(shape={"max_prompt_tokens": 512, "max_total_tokens": 1024, "batch_size": 4})
    options = export(spec).options
    assert options["--max-model-len"] == 1024
    assert options["--max-num-seqs"] == 4
    assert options["--dtype"] == "bfloat16"
    assert options["--override-generation-config"] == {"temperature": 0}


# Rules and shapes


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"rule": "greedy"}, None),
        ({"rule": "rejection"}, None),
        ({"rule": "lenient", "lenience": 1.0}, None),
        ({"rule": "lenient", "lenience": 0.5}, "keeps the target's distribution"),
        ({"rule": "typical"}, "keeps the target's distribution"),
        ({"rule": "sample-match"}, "no longer the tokens of plain decoding"),
    ],
)
@pytest.mark.parametrize("export", [gpu, plugin])
def test_rules(export: Any, rule: dict[str, Any], says: str | None) -> None:
    handover = export(make_spec(verification=rule))
    assert ("verification.rule" in lost(handover)) == (says is not None)
    assert (says or "") in lost(handover)
    is_greedy = rule["rule"] == "greedy"
    assert ("--override-generation-config" in handover.options) == is_greedy


def test_a_rule_without_drafts_is_no_loss() -> None:
    assert "verification" not in lost(gpu(make_spec("none", verification={"rule": "typical"})))


@pytest.mark.parametrize(
    ("draft", "length"),
    [
        ({"tree": [[0], [1], [0, 0]]}, 2),
        ({"tree": [[0], [1], [0, 0]], "num_draft_tokens": 2}, 1),
        ({"dynamic_tree": {"depth": 5}, "num_draft_tokens": 40}, 5),
    ],
)
@pytest.mark.parametrize("export", [gpu, plugin])
def test_trees_become_chains_of_their_depth(
    export: Any, draft: dict[str, Any], length: int
) -> None:
    handover = export(make_spec(draft=draft))
    assert speculation(handover)["num_speculative_tokens"] == length
    assert f"a chain of {length}" in lost(handover)


def test_a_chain_loses_no_shape() -> None:
    assert "draft." not in lost(gpu(make_spec())) + lost(plugin(make_spec()))


def test_a_lookup_is_lost_and_the_draft_goes_on() -> None:
    handover = gpu(make_spec("eagle", draft={"lookup": {"num_draft_tokens": 9}}))
    assert "draft.lookup" in lost(handover)
    assert speculation(handover)["num_speculative_tokens"] == 4


# Plain vLLM


@pytest.mark.parametrize(
    ("method", "draft", "keys"),
    [
        ("model", {}, {"model": "d", "method": "draft_model"}),
        ("model", {"vocabulary": "intersection"}, {"use_heterogeneous_vocab": True}),
        ("model", {"sampled": True}, {"draft_sample_method": "probabilistic"}),
        ("mtp", {}, {"method": "mtp"}),
        ("medusa", {}, {"model": "d", "method": "medusa"}),
        ("ngram", {"ngram_sizes": [2, 4]}, {"prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        (
            "suffix",
            {"suffix_depth": 12, "suffix_min_probability": 0.2, "suffix_answers": 7},
            {
                "suffix_decoding_max_tree_depth": 12,
                "suffix_decoding_min_token_prob": 0.2,
                "suffix_decoding_max_cached_requests": 7,
            },
        ),
    ],
)
def test_keys_of_each_method(method: str, draft: dict[str, Any], keys: dict[str, Any]) -> None:
    spec = make_spec(method, draft=draft, verification={"rule": "rejection"})
    draft_model = Model("d") if spec.draft.model else None
    config = speculation(for_vllm(spec, Models(Model("t"), draft_model)))
    assert keys.items() <= config.items()
    assert ("model" in config) == (draft_model is not None)
    assert ("draft_sample_method" in config) == spec.draft.sampled


@pytest.mark.parametrize("method", ["hydra", "early-exit"])
def test_methods_that_vllm_lacks(method: str) -> None:
    extra = {"exit_layer": 3} if method == "early-exit" else {}
    with pytest.raises(SpecError, match=f"vLLM has no '{method}' drafts"):
        gpu(make_spec(method, draft=extra))


@pytest.mark.parametrize(
    ("batch_size", "rows"),
    [
        (32, [[1, 7, 4], [8, 16, 2], [17, 32, 0]]),
        (16, [[1, 7, 4], [8, 16, 2]]),
        (17, [[1, 7, 4], [8, 16, 2], [17, 17, 0]]),
        (1, [[1, 1, 4]]),
    ],
)
def test_lengths_by_load(batch_size: int, rows: list[list[int]]) -> None:
    shape = {"max_prompt_tokens": 64, "max_total_tokens": 128, "batch_size": batch_size}
    spec = make_spec(draft={"by_load": [[1, 4], [8, 2], [17, 0]]}, shape=shape)
    handover = gpu(spec)
    assert speculation(handover)["num_speculative_tokens_per_batch_size"] == rows
    assert handover.environment == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert "by_load" not in lost(handover)
    for neuron in (nxdi(spec), plugin(spec)):
        assert "draft.by_load: k = 4 at every load" in lost(neuron)
        assert speculation(neuron)["num_speculative_tokens"] == 4


def test_no_length_by_load_exceeds_the_chain() -> None:
    draft = {"tree": [[0], [1], [0, 0]], "by_load": [[1, 3], [2, 1]]}
    shape = {"max_prompt_tokens": 64, "max_total_tokens": 128, "batch_size": 4}
    config = speculation(gpu(make_spec(draft=draft, shape=shape)))
    assert config["num_speculative_tokens"] == 2
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 2], [2, 4, 1]]


def test_revisions_stand_apart() -> None:
    models = Models(Model("t", "v1"), Model("d", "v2"))
    for handover in (for_vllm(make_spec(), models), for_vllm_neuron(make_spec(), models, "/c")):
        assert handover.options["--revision"] == "v1"
        assert speculation(handover)["revision"] == "v2"


# Over NxDI


@pytest.mark.parametrize("method", ["none", "eagle", "eagle3"])
def test_the_overrides_are_our_whole_configuration(method: str) -> None:
    """With the plugin's defaults underneath, NxDI gets what our own build gives it."""
    spec = make_spec(method, neuron={"instance": "trn2.48xlarge", "tp_degree": 8})
    config, handover = render(spec), nxdi(spec)
    additional = handover.options["--additional-config"]
    override = dict(additional["override_neuron_config"])
    draft_overrides = override.pop("draft_overrides", None)
    by_options = {
        "tp_degree": handover.options["--tensor-parallel-size"],
        "batch_size": handover.options["--max-num-seqs"],
        "torch_dtype": handover.options["--dtype"],
    }
    ours = {"on_device_sampling_config": None, **config.neuron_arguments}
    assert {**override, **by_options} == ours
    assert additional["max_prompt_length"] == override["max_context_length"]
    assert handover.environment == {"NEURON_COMPILED_ARTIFACTS": "/compiled"}
    if method == "none":
        assert draft_overrides is None
        return
    assert override["speculation_length"] == 5
    assert speculation(handover)["num_speculative_tokens"] == 4
    assert draft_overrides["is_eagle_draft"] is True
    assert Path(speculation(handover)["model"]) == Path("build/build/draft").absolute()


def test_a_folder_with_spaces_can_be_pasted() -> None:
    shell = for_vllm_nxdi(make_spec("eagle"), MODELS, "/my models/$HOME").shell
    words = shlex.split(shell.replace("\\\n", " "))
    assert words[0] == "NEURON_COMPILED_ARTIFACTS=/my models/$HOME"


@pytest.mark.parametrize(
    ("method", "on_device", "enforced"),
    [("none", False, False), ("none", True, True), ("eagle", False, True)],
)
def test_who_makes_requests_greedy(method: str, on_device: bool, enforced: bool) -> None:
    neuron = {"instance": "trn2.48xlarge", "tp_degree": 8, "sample_on_device": on_device}
    notes = "\n".join(nxdi(make_spec(method, neuron=neuron)).notes)
    assert ("the graph is greedy" in notes) == enforced
    assert ("one with a temperature is sampled" in notes) != enforced


def test_blocks_are_whole_sequences() -> None:
    shape = {"max_prompt_tokens": 64, "max_total_tokens": 128, "batch_size": 4}
    options = nxdi(make_spec("eagle", shape=shape)).options
    assert options["--num-gpu-blocks-override"] == 4
    assert options["--no-enable-prefix-caching"] is None


@pytest.mark.parametrize(
    ("sdk", "says"), [("2.28", "vllm-neuron 0.4.1"), ("2.29", "vllm-neuron 0.5.0")]
)
def test_the_plugin_of_the_release(sdk: str, says: str) -> None:
    neuron = {"instance": "trn2.48xlarge", "tp_degree": 8, "sdk": sdk}
    assert any(says in note for note in nxdi(make_spec("eagle", neuron=neuron)).notes)


@pytest.mark.parametrize(
    ("method", "why"), [("model", "no draft models"), ("medusa", "fused"), ("ngram", "EAGLE")]
)
def test_methods_that_the_nxdi_plugin_lacks(method: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        nxdi(make_spec(method))


def test_what_nxdi_refuses_is_refused() -> None:
    with pytest.raises(SpecError, match="not for NxD Inference"):
        nxdi(make_spec("eagle3", verification={"rule": "typical"}))


# The vLLM Neuron plugin


def plugin_config(**neuron: Any) -> dict[str, Any]:
    table = {"instance": "trn2.48xlarge", "tp_degree": 8, **neuron}
    options = plugin(make_spec(neuron=table)).options
    config: dict[str, Any] = options["--additional-config"]["neuron_config"]
    largest = config.get("num_batched_tokens_buckets", [options["--max-num-batched-tokens"]])[-1]
    assert largest == options["--max-num-batched-tokens"]
    assert config.keys() <= PLUGIN_KEYS
    assert config["num_seqs_buckets"][-1] == options["--max-num-seqs"]
    return config


def test_buckets_have_new_names() -> None:
    config = plugin_config(
        context_encoding_buckets=[256, 512], token_generation_buckets=[256, 500, 1024, 1152]
    )
    assert config == {
        "num_seqs_buckets": [1],
        "num_batched_tokens_buckets": [256, 512],
        "decode_context_length_buckets": [256],
        "on_device_sampling_config": {"all_greedy": True},
    }


def test_buckets_that_the_spec_leaves_open_stay_open() -> None:
    assert set(plugin_config()) == {"num_seqs_buckets", "on_device_sampling_config"}
    assert plugin_config(bucketing=False)["num_batched_tokens_buckets"] == [512]


def test_sampling_is_left_to_the_host() -> None:
    handover = plugin(make_spec(verification={"rule": "rejection"}))
    config = handover.options["--additional-config"]["neuron_config"]
    assert "on_device_sampling_config" not in config
    assert any("try it before" in note for note in handover.notes)


@pytest.mark.parametrize(
    ("neuron", "field"),
    [
        ({"config": {"fused_qkv": True}}, "neuron.config: fused_qkv"),
        ({"draft_config": {"fused_qkv": True}}, "neuron.draft_config: fused_qkv"),
        ({"sampling": {"global_topk": 64}}, "neuron.sampling: global_topk"),
        ({"draft_tp_degree": 4}, "neuron.draft_tp_degree"),
        ({"logical_nc_config": 1}, "neuron.logical_nc_config"),
        ({"save_sharded_checkpoint": True}, "neuron.save_sharded_checkpoint"),
        ({"token_generation_buckets": [500, 1152]}, "neuron.token_generation_buckets [500, 1152]"),
    ],
)
def test_settings_of_nxdi_are_lost_by_name(neuron: dict[str, Any], field: str) -> None:
    table = {"instance": "trn2.48xlarge", "tp_degree": 8}
    assert "neuron." not in lost(plugin(make_spec(neuron=table)))
    assert f"{field}: " in lost(plugin(make_spec(neuron={**table, **neuron})))


@pytest.mark.parametrize("instance", ["trn1.32xlarge", "inf2.48xlarge"])
def test_older_instances_are_refused(instance: str) -> None:
    with pytest.raises(SpecError, match="trn2 and trn3 only"):
        plugin(make_spec(neuron={"instance": instance, "tp_degree": 8}))


@pytest.mark.parametrize(
    "module", ["vllm", "vllm_nxdi", "vllm_neuron", "sagemaker", "training_data"]
)
def test_no_torch(module: str) -> None:
    code = f"import sys, neuron_spec.export.{module}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "False", result.stderr
