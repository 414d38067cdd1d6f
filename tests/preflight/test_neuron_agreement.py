"""The preflight looks at the build that the backend configures, and at the specs of `compile/`."""

from __future__ import annotations

from pathlib import Path

import pytest
from neuron_builds import build_of, config, eagle_of

from neuron_spec.backends.neuron.config import render
from neuron_spec.backends.neuron.facts import CheckpointFacts, DraftFacts, TargetFacts
from neuron_spec.backends.neuron.families import CLASSES
from neuron_spec.backends.neuron.speculation import METHODS
from neuron_spec.errors import SpecError
from neuron_spec.platforms.nxdi_models import FAMILIES
from neuron_spec.preflight.neuron import check_build
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.spec import load_spec
from neuron_spec.spec.schema import DRAFT_METHODS

COMPILE = Path(__file__).parents[2] / "compile"
SPECS = sorted(path for path in COMPILE.glob("*.toml") if not path.name.endswith(".cpu.toml"))

TARGETS = {
    "smollm2-135m": "smollm2-135m",
    "Llama-3.1-8B": "llama-8b", "Llama-3.1-70B": "llama-70b", "Llama-3.3-70B": "llama-70b",
    "Llama-3.1-405B": "llama-405b", "Llama-3.2-1B": "llama-1b", "vicuna-7b": "vicuna-7b",
    "Qwen3-32B": "qwen3-32b", "gpt-oss-120b": "gpt-oss-120b",
}  # fmt: skip


@pytest.mark.parametrize("method", DRAFT_METHODS)
def test_methods_are_those_that_are_configured(method: str) -> None:
    fields = {"exit_layer": 1} if method == "early-exit" else {}
    build = build_of(method=method, draft_fields=fields)
    assert (build.path is not None) is (method in METHODS)


def test_a_refusal_is_a_refusal_in_both() -> None:
    """What has no errors is configured; what is not configured has errors."""
    for fields in (
        {}, {"method": "eagle"}, {"method": "eagle", "rule": "rejection"},
        {"method": "eagle", "rule": "lenient"}, {"method": "model", "rule": "rejection"},
        {"method": "model", "rule": "rejection", "neuron": {"fused": False}},
        {"method": "medusa", "target": "vicuna-7b"}, {"method": "hydra"},
        {"method": "medusa", "target": "vicuna-7b", "draft_fields": {"tree": [[0], [10]]}},
        {"method": "eagle", "draft_fields": {"tree": [[0], [1], [0, 0]]}},
        {"method": "eagle3", "draft_fields": {"tree": [[0], [1]]}},
        {"neuron": {"config": {"seq_len": 64}}}, {"neuron": {"config": {"fused_qvk": True}}},
        {"neuron": {"sampling": {"top_k": 5}}},
        {"method": "ngram", "neuron": {"sample_on_device": True}},
        {"method": "eagle", "neuron": {"token_generation_buckets": [2052]}},
        {"method": "eagle", "neuron": {"context_encoding_buckets": [5, 1024]}},
    ):  # fmt: skip
        build = build_of(**fields)  # type: ignore[arg-type]
        errors = {f.code for f in check_build(build) if f.severity == "error"}
        try:
            render(build.spec, facts_of(build))
            assert not errors, (fields, errors)
        except SpecError:
            assert errors, fields


def facts_of(build: NeuronBuild) -> CheckpointFacts:
    return CheckpointFacts(
        TargetFacts(model_type=build.target_type),
        DraftFacts(model_type=build.draft_type, num_medusa_heads=build.num_medusa_heads),
    )


def test_classes_are_those_of_known_families() -> None:
    families = {family.family: family for family in FAMILIES}
    assert CLASSES.keys() <= families.keys()
    speculating = {name for name, family in families.items() if len(family.paths) > 1}
    assert speculating <= CLASSES.keys() | {"gemma3"}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_specs_for_neuron_pass(path: Path) -> None:
    spec = load_spec(path)
    assert spec.neuron is not None
    target = _known(spec.target.model)
    draft = None
    if spec.draft.method in ("eagle", "eagle3"):
        draft = eagle_of(target)
    elif spec.draft.method == "model":
        draft = config(_known(str(spec.draft.model)), vocab_size=config(target).vocab_size)
    build = NeuronBuild(
        spec,
        spec.neuron,
        target=config(target),
        draft=draft,
        target_type=config(target).model_type,
        draft_type=draft.model_type if draft else None,
        num_medusa_heads=4 if spec.draft.method == "medusa" else None,
    )
    assert [f for f in check_build(build) if f.severity == "error"] == []


def _known(model: str) -> str:
    if "Qwen3" in model:
        return "qwen3-32b"
    return next(known for name, known in TARGETS.items() if name in model)
