"""Instances, releases, methods and families: each constraint violated once, and just kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from neuron_builds import (
    assert_found,
    build_of,
    codes_of,
    config,
    eagle_of,
    errors_of,
    findings_of,
)

from neuron_spec.platforms.nxdi_models import FAMILIES, family_of
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron import check_build

TRN1 = {"instance": "trn1.32xlarge", "sdk": "2.28", "tp_degree": 8}
BIG = {"instance": "trn2.48xlarge", "tp_degree": 16}


GEMMA = config("gemma3-27b", num_hidden_layers=2)


def neuron(**fields: Any) -> dict[str, Any]:
    return {"neuron": fields}


@pytest.mark.parametrize(
    ("code", "violation", "passing"),
    [
        ("instance-unknown", neuron(instance="trn2.49xlarge"), neuron(instance="trn2.48xlarge")),
        ("lnc", neuron(**TRN1, logical_nc_config=2), neuron(**TRN1, logical_nc_config=1)),
        ("release-instance", neuron(**{**TRN1, "sdk": "2.29"}), neuron(**TRN1)),
        (
            "release-instance",
            neuron(instance="inf2.48xlarge", tp_degree=8, sdk="2.31"),
            neuron(instance="inf2.48xlarge", tp_degree=8, sdk="2.28"),
        ),
        (
            "release-instance",
            neuron(instance="trn3-gen2", tp_degree=4, sdk="2.26"),
            neuron(instance="trn3-gen2", tp_degree=4, sdk="2.27"),
        ),
        ("release-ended", neuron(sdk="2.34"), neuron(sdk="2.32")),
        ("family", {"target": config("llama-8b", model_type="cohere")}, {"target": "llama-8b"}),
        ("family", {"target_type": "gemma4"}, {"target_type": "llama"}),
        (
            "family-release",
            {"target": "gemma3-27b", **neuron(**BIG, sdk="2.28")},
            {"target": "gemma3-27b", **neuron(**BIG, sdk="2.29")},
        ),
        (
            "family-release",
            {"target": "gpt-oss-120b", **neuron(**BIG, sdk="2.26")},
            {"target": "gpt-oss-120b", **neuron(**BIG, sdk="2.27")},
        ),
        (
            "family-method",
            {"target": "qwen3-32b", "method": "medusa", "draft_fields": {"num_draft_tokens": 3}},
            {"target": "vicuna-7b", "method": "medusa", "draft_fields": {"num_draft_tokens": 3}},
        ),
        (
            "draft-family",
            {"method": "model", "draft": config("llama-1b", model_type="llama4_text")},
            {"method": "model", "draft": "llama-1b"},
        ),
        (
            "draft-family-release",
            {"method": "model", "draft": GEMMA, **neuron(sdk="2.28")},
            {"method": "model", "draft": GEMMA, **neuron(sdk="2.29")},
        ),
    ],
)
def test_support(code: str, violation: dict[str, Any], passing: dict[str, Any]) -> None:
    assert_found(code, violation, passing)


TREE = {"tree": [[0], [1]]}


@pytest.mark.parametrize(
    ("violation", "passing", "said", "mend"),
    [
        ({"method": "hydra"}, {"method": "eagle"}, "'hydra'", "use eagle"),
        ({"method": "hydra", "draft_fields": TREE}, {"method": "eagle"}, "'hydra'", "use eagle"),
        ({"method": "mtp"}, {}, "'mtp'", "use eagle"),
        ({"method": "early-exit", "draft_fields": {"exit_layer": 8}}, {}, "'early-exit'", "use "),
        (
            {"method": "eagle", "draft_fields": {"dynamic_tree": {"depth": 3}}},
            {"method": "eagle", "draft_fields": TREE},
            "dynamic_tree",
            "use draft.tree with eagle",
        ),
        (
            {"method": "model", "draft_fields": {"vocabulary": "intersection"}},
            {"method": "model", "draft_fields": {"vocabulary": "same"}},
            "intersection",
            "use a draft with the target's tokenizer",
        ),
        (
            {"method": "eagle3", "draft_fields": TREE},
            {"method": "eagle3"},
            "draft.tree of draft.method 'eagle3'",
            "leave draft.tree out: EAGLE-3",
        ),
        (
            {"method": "model", "draft_fields": TREE},
            {"method": "model"},
            "draft.tree of draft.method 'model'",
            "leave draft.tree out: a draft model",
        ),
        (
            {"method": "eagle", "draft_fields": {"lookup": {}}},
            {"method": "eagle"},
            "draft.lookup (its graphs",
            "leave draft.lookup out",
        ),
    ],
)
def test_what_nxdi_has_nothing_for(
    violation: dict[str, Any], passing: dict[str, Any], said: str, mend: str
) -> None:
    assert_found("method", violation, passing)
    (finding,) = (f for f in findings_of(**violation) if f.code == "neuron-method")
    assert said in finding.message and "reference backend only" in finding.message
    assert finding.remedy.startswith(mend)


@pytest.mark.parametrize("method", ["ngram", "suffix", "none"])
def test_what_the_host_drafts_needs_nothing_of_nxdi(method: str) -> None:
    assert errors_of(method=method) == set()


def only(code: str, **fields: Any) -> Finding:
    (finding,) = (f for f in findings_of(**fields) if f.code == f"neuron-{code}")
    return finding


def test_old_chips_are_told_the_release_that_has_them() -> None:
    finding = only("release-instance", neuron={**TRN1, "sdk": "2.29"})
    assert "0.9.17334" in finding.message and finding.remedy.endswith("2.26, 2.27, 2.28")
    finding = only("release-instance", neuron={"instance": "trn3-gen1", "sdk": "2.26"})
    assert finding.remedy.startswith("set neuron.sdk to one of 2.27, 2.28")


@pytest.mark.parametrize(
    ("sdk", "code"), [("2.25", "release-unknown"), ("2.33", "release-unknown"),
                      ("2.31", "release-unread"), ("2.28", None), ("2.29", None)]
)  # fmt: skip
def test_releases_that_were_not_read(sdk: str, code: str | None) -> None:
    found = {c for c in codes_of(neuron={"sdk": sdk}) if c.startswith("release")}
    assert found == ({code} if code else set())


def test_trainium3_is_taken_for_its_predecessor() -> None:
    finding = only("instance-tp-unlisted", neuron={"instance": "trn3-gen1"})
    assert finding.severity == "info"
    assert "instance-tp-unlisted" not in codes_of()


def test_a_silent_switch_is_told_before_a_model_is_compiled_without_speculation() -> None:
    finding = only("family-method", target=None, target_type="qwen2_vl", method="eagle")
    assert "switches speculation off with a warning" in finding.message
    assert errors_of(target=None, target_type="qwen2_vl") == set()


@pytest.mark.parametrize("kind", ["llama4", "mllama", "pixtral", "qwen3_vl"])
@pytest.mark.parametrize("method", ["eagle", "eagle3", "model", "medusa", "ngram"])
def test_families_that_take_no_speculation(kind: str, method: str) -> None:
    found = codes_of(target=None, target_type=kind, method=method)
    assert "family-method" in found


def test_mistral_is_run_by_llama_where_its_own_class_is_not_enough() -> None:
    assert errors_of(target="mistral-7b", neuron={"sdk": "2.28"}) == set()
    medusa = {"method": "medusa", "target": "mistral-7b"}
    assert errors_of(**medusa) == set()


def test_what_no_guide_shows_is_a_warning() -> None:
    assert only("family-unshown", target="qwen3-32b", method="model").severity == "warning"
    tree = {"draft_fields": {"tree": [[0], [1]]}}
    assert only("family-unshown", method="eagle", **tree).severity == "warning"
    for method in ("none", "eagle", "eagle3", "model", "ngram"):
        assert "family-unshown" not in codes_of(method=method)


def test_no_model_type_belongs_to_two_families() -> None:
    kinds = [kind for family in FAMILIES for kind in family.model_types]
    assert len(kinds) == len(set(kinds)) and family_of("nonsense") is None


def test_the_class_of_a_draft_is_asked_for_where_there_is_one_to_choose() -> None:
    """EAGLE drafts are Llama's whatever they call themselves, Medusa heads are no model."""
    head = eagle_of("llama-8b", model_type="cohere")
    assert errors_of(method="eagle", draft=head) == set()
    assert errors_of(method="medusa", target="vicuna-7b", draft=head) == set()
    unknown = replace(build_of(method="model"), draft=None, draft_type=None)
    assert [f for f in check_build(unknown) if f.severity == "error"] == []


def test_states_that_nxdi_does_not_hand_over() -> None:
    """Llama-3.1-8B has 32 layers; NxDI taps the inputs of 2, 16 and 29."""
    head = eagle_of("llama-8b")

    def of(*layers: int) -> dict[str, Any]:
        raw = {**head.raw, "eagle_aux_hidden_state_layer_ids": list(layers)}
        return {"method": "eagle3", "draft": replace(head, raw=raw)}

    assert_found("eagle3-feature-layers", of(8, 16, 24), of(2, 16, 29))
    assert "eagle3-feature-layers" not in codes_of(**of(1, 15, 28))  # the same, counted by output
