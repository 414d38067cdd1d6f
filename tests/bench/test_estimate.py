"""Costs from platform facts: the roofline, what it assumes, and what published figures tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from neuron_builds import CONFIGS, build_of

from neuron_spec.bench.estimate import ASSUMPTIONS, estimated_costs, estimated_plan
from neuron_spec.errors import NeuronSpecError
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.platforms.instances import INSTANCES
from neuron_spec.platforms.throughput import CHIP_THROUGHPUT, core_throughput
from neuron_spec.spec import load_spec
from neuron_spec.theory import conditional_rates, expected_tokens_by_position

TRN2 = {"instance": "trn2.48xlarge"}


def build(draft: str | None, method: str = "model", target: str = "llama-8b", **fields: Any) -> Any:
    return build_of(target=target, draft=draft, method=method, **fields)


def test_every_chip_has_its_peaks() -> None:
    assert set(CHIP_THROUGHPUT) == {instance.family for instance in INSTANCES.values()}
    for instance in INSTANCES.values():
        for lnc in instance.chip.lncs:
            core, chip = core_throughput(instance, lnc), CHIP_THROUGHPUT[instance.family]
            cores = instance.logical_cores(lnc)
            whole = chip.hbm_bytes_per_s * instance.num_chips
            assert core.hbm_bytes_per_s * cores == pytest.approx(whole)


def test_a_plain_step_reads_all_weights_once() -> None:
    """8.03 billion values of two bytes, the embedding not read, over 2.9 TB/s of one chip."""
    costs = estimated_costs(build("llama-1b"), (1,), 3).at(1)
    read = (8.03e9 - 128256 * 4096) * 2
    assert costs[0].step_s.value == pytest.approx(read / 2.9e12, rel=0.03)
    assert (costs[0].step_s.low, costs[0].step_s.num_samples) == (None, 0)


def test_a_step_is_drafts_and_a_verification() -> None:
    costs = estimated_costs(build("llama-1b"), (1, 4), 3)
    for concurrency in (1, 4):
        steps = costs.at(concurrency)
        for k, cost in steps.items():
            assert cost.draft_s is not None
            assert cost.verify_s is not None
            assert cost.step_s.value == pytest.approx(cost.draft_s.value + cost.verify_s.value)
            assert cost.draft_s.value == pytest.approx(k * steps[1].draft_s.value)  # type: ignore[union-attr]
    # While memory is the limit, more positions are free; the KV cache of more requests is not.
    assert costs.at(1)[3].verify_s == costs.at(1)[0].verify_s
    assert costs.at(4)[0].step_s.value > costs.at(1)[0].step_s.value


def test_arithmetic_counts_from_many_positions_on() -> None:
    """Weights of two bytes: 667 TFLOPS / 2.9 TB/s, about 230 positions, hide behind the reading."""
    few = estimated_costs(build("llama-1b"), (8,), 8).at(8)
    many = estimated_costs(build("llama-1b", shape={"max_total_tokens": 1025}), (64,), 8).at(64)
    assert few[8].verify_s == few[0].verify_s
    assert many[8].verify_s.value > 1.3 * many[0].verify_s.value  # type: ignore[union-attr]


def test_a_deeper_target_or_fewer_cores_take_longer() -> None:
    one = estimated_costs(build("llama-1b"), (1,), 1).at(1)[0].step_s.value
    wide = build("llama-1b", neuron={**TRN2, "tp_degree": 8})
    assert estimated_costs(wide, (1,), 1).at(1)[0].step_s.value == pytest.approx(one / 2, rel=0.02)
    large = build("llama-1b", target="llama-70b")
    assert estimated_costs(large, (1,), 1).at(1)[0].step_s.value > 7 * one


# Published on trn2 (AWS Neuron documentation and vLLM Neuron's tutorials): build, seconds of a
# plain step, draft length, time per output token with it, and the acceptance where it is told.
PUBLISHED = {
    "70b-model": (
        build("llama-1b", target="llama-70b", neuron={**TRN2, "tp_degree": 64},
              shape={"max_prompt_tokens": 12288, "max_total_tokens": 12793}),
        0.0196, 6, 0.0053, None,
    ),
    "8b-eagle3": (
        build(None, "eagle3", neuron={**TRN2, "tp_degree": 8}),
        0.01052, 3, 0.00641, (0.865, 0.725, 0.635),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_steps_lie_above_the_floor(name: str) -> None:
    own, plain_s, _, _, _ = PUBLISHED[name]
    floor = estimated_costs(own, (1,), 1).at(1)[0].step_s.value
    assert 1 < plain_s / floor < 8


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_speed_ups_lie_below_the_estimate(name: str) -> None:
    own, plain_s, k, speculating_s, reached = PUBLISHED[name]
    costs = estimated_costs(own, (1,), k).at(1)
    most = costs[0].step_s.value / costs[k].step_s.value * (k + 1)
    assert plain_s / speculating_s < most
    if reached is not None:
        tokens = expected_tokens_by_position(conditional_rates(reached))
        estimated = tokens * costs[0].step_s.value / costs[k].step_s.value
        assert 1 < estimated / (plain_s / speculating_s) < 2


# From a spec and a run


def run_file(path: Path, *, method: str = "model", drafted: int = 3) -> Path:
    prompts = []
    for accepted in ((3, 1, 0, 3), (2, 2, 3, 1)):
        counts = AcceptanceCounts()
        for number in accepted:
            counts.add_step(drafted, min(number, drafted))
        prompts.append({"acceptance": counts.as_dict()})
    draft = {"method": method, "num_draft_tokens": 3, "tree": None, "dynamic_tree": None}
    run = {"format": "neuron-spec bench 1", "record": {"draft": draft}, "prompts": prompts}
    path.write_text(json.dumps({**run, "notes": ["a note"]}))
    return path


def spec_file(folder: Path, **sections: Any) -> Path:
    for name, config in (("target", "llama-8b"), ("draft", "llama-1b")):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(COMPLETE | CONFIGS[config]))
    given: dict[str, Any] = {
        "target": {"model": "target", "dtype": "bfloat16"},
        "draft": {"method": "model", "model": "draft", "num_draft_tokens": 5},
        "shape": {"max_prompt_tokens": 1024, "max_total_tokens": 2048},
        "neuron": {"instance": "trn2.48xlarge", "tp_degree": 8},
    }
    return tiny.write_spec(folder / "spec.toml", **{**given, **sections})


COMPLETE = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu"}


def planned(folder: Path, concurrencies: tuple[int, ...] = (1, 8), **options: Any) -> Any:
    from neuron_spec.bench.run import read_run

    run = read_run(run_file(folder / "run.json"))
    return estimated_plan(load_spec(spec_file(folder)), run, concurrencies, **options)


def test_a_plan_says_that_it_is_an_estimate(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan["estimate"]["instance"] == "trn2.48xlarge"
    assert set(ASSUMPTIONS) <= set(plan["estimate"]["assumptions"])
    assert plan["notes"][0] == "an estimate, not a measurement"
    assert "a note" in plan["notes"]
    options = plan["loads"][0]["options"]
    assert [option["num_draft_tokens"] for option in options] == [0, 1, 2, 3]
    assert options[3]["tokens_per_step"]["value"] == 1 + 15 / 8
    assert options[3]["speed_up"]["low"] is None
    assert options[3]["speed_up"]["value"] < 1 + 15 / 8
    assert plan["by_load"][0][1] == 3


def test_another_instance_is_planned_for(tmp_path: Path) -> None:
    other = planned(tmp_path, instance="trn1.32xlarge")
    assert other["estimate"]["instance"] == "trn1.32xlarge"
    own, slower = (
        plan["loads"][0]["options"][0]["step_s"]["value"] for plan in (planned(tmp_path), other)
    )
    assert slower > own
    for name, words in (("trn9", "no such instance"), ("trn2.3xlarge", "more cores")):
        with pytest.raises(NeuronSpecError, match=words):
            planned(tmp_path, instance=name)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"neuron": None}, r"no \[neuron\] section"),
        ({"draft": {"method": "ngram", "num_draft_tokens": 2}}, "no cost is known"),
    ],
)
def test_what_has_no_estimate(tmp_path: Path, sections: Any, words: str) -> None:
    from neuron_spec.bench.run import read_run

    path = spec_file(tmp_path)
    spec = load_spec(path)
    update: dict[str, Any] = {}
    for name, fields in sections.items():
        old = getattr(spec, name)
        update[name] = None if fields is None else old.model_copy(update=fields)
    run = read_run(run_file(tmp_path / "run.json"))
    with pytest.raises(NeuronSpecError, match=words):
        estimated_plan(spec.model_copy(update=update), run, (1,))


def test_mixtures_and_runs_without_drafts_have_none(tmp_path: Path) -> None:
    from neuron_spec.bench.run import read_run

    spec = load_spec(spec_file(tmp_path))
    with pytest.raises(NeuronSpecError, match="nothing was drafted"):
        estimated_plan(spec, read_run(run_file(tmp_path / "r.json", drafted=0)), (1,))
    config = COMPLETE | CONFIGS["qwen3-30b-a3b"]
    (tmp_path / "target/config.json").write_text(json.dumps(config))
    with pytest.raises(NeuronSpecError, match="experts"):
        estimated_plan(spec, read_run(run_file(tmp_path / "run.json")), (1,))


def test_quantized_layers_are_half_as_much_to_read() -> None:
    own = build("llama-1b")
    neuron = own.neuron.model_copy(update={"config": {"quantized": True}})
    one, half = (
        estimated_costs(each, (1,), 1).at(1)[0].step_s.value
        for each in (own, replace(own, neuron=neuron))
    )
    assert 0.5 < half / one < 0.6
