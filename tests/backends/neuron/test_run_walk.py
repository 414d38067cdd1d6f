"""From a spec to tokens: compiled, loaded and generated over the double, with several buckets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from nxdi_builds import DRAFTS, write_spec
from nxdi_double import Recorder
from nxdi_double.forward import Emulation

from neuron_spec.artifacts import open_artifact
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.bench.plan import plan_of, planned_line
from neuron_spec.checkpoints import prepare
from neuron_spec.cli.bench import run_bench
from neuron_spec.compiler import compile_model
from neuron_spec.engine import Session, load
from neuron_spec.engine.warmup import warm_up
from neuron_spec.errors import UserError
from neuron_spec.spec import BuildSpec

# For the longer prompt graph, and one that repeats itself, so that n-grams are found.
PROMPTS = ([7, 9] * 17, [5, 6, 7, 5, 6, 7, 5])
LIMITS = {"max_new_tokens": 14, "ignore_eos": True}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; what opening sets in the environment goes with the test."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def alone(session: Session, spec: BuildSpec, target: Path) -> list[tuple[int, ...]]:
    """The reference backend's output of the target without a draft."""
    data = {**spec.model_dump(), "draft": {"method": "none"}, "neuron": None}
    speculator = open_speculator(BuildSpec.model_validate(data), target, None)
    plain = Session(speculator, session.tokenizer)
    return [plain.generate(prompt, **LIMITS).token_ids for prompt in PROMPTS]


@pytest.mark.parametrize("way", DRAFTS)
def test_every_way_generates_what_the_target_would(nxdi: Recorder, here: Path, way: str) -> None:
    spec = write_spec(here, way)
    prepared = prepare(spec)
    artifact = compile_model(spec, prepared, backend="neuron")
    Emulation(nxdi)
    session = load(artifact.directory)
    found = [session.generate(prompt, **LIMITS) for prompt in PROMPTS]
    assert [out.token_ids for out in found] == alone(session, spec, prepared.target)
    for out in found:
        assert (out.acceptance.num_drafted > 0) == (way != "none")
    off = session.generate(PROMPTS[0], speculate=False, **LIMITS)
    assert off.token_ids == found[0].token_ids and off.acceptance.num_drafted == 0


@pytest.mark.parametrize("way", ["none", "eagle", "unfused", "medusa"])
def test_warming_up_runs_every_graph(nxdi: Recorder, here: Path, way: str) -> None:
    spec = write_spec(here, way)
    artifact = compile_model(spec, prepare(spec), backend="neuron")
    Emulation(nxdi)
    session = load(artifact.directory)
    assert warm_up(session) > 0
    assert session.speculator.step(session.speculator.limits.num_draft_tokens) == []


@pytest.mark.parametrize("way", ["eagle", "medusa"])
def test_bench_compares_with_the_target_alone(
    nxdi: Recorder, here: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off in the same graph would take as long as on: another artifact is off, or nothing is."""
    artifacts = {}
    for name in ("none", way):
        (here / name).mkdir()
        monkeypatch.chdir(here / name)
        spec = write_spec(here / name, name)
        compiled = compile_model(spec, prepare(spec), backend="neuron")
        artifacts[name] = open_artifact(compiled.directory.absolute())
    Emulation(nxdi)
    prompts = here / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPTS[1]}) + "\n")
    options = {"prompts": prompts, "repetitions": 1, "max_new_tokens": 4}
    on, off = artifacts[way], artifacts["none"].directory
    alone = run_bench(on, **options)
    assert {load["way"] for load in alone["loads"]} == {"on"}
    assert (alone["speed_ups"], alone["step_costs"]) == ([], None)
    with pytest.raises(UserError, match="the run has no step costs") as caught:
        plan_of(alone)
    assert "--off" in str(caught.value)
    both = run_bench(on, off=off, **options)
    assert [load["way"] for load in both["loads"]] == ["off", "on"]
    assert both["prompts"][0]["identical"] is True
    assert both["record"]["off"]["name"] == artifacts["none"].manifest.name
    plan = plan_of(both)
    lengths = [option.num_draft_tokens for option in plan.loads[0].options]
    assert lengths == [0, on.manifest.num_draft_tokens]
    assert planned_line(plan, both) == ""
    with pytest.raises(UserError, match="no step without drafts"):
        run_bench(on, is_planned=True, **options)
    with pytest.raises(UserError, match="it drafts with"):
        run_bench(on, off=on.directory, **options)
