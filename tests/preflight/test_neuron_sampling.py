"""Rules, samplers and trees that each way through NxDI can do."""

from __future__ import annotations

from typing import Any

import pytest
from neuron_builds import assert_found, codes_of, config, errors_of, findings_of

from neuron_spec.spec.schema import RULES

VICUNA = {"method": "medusa", "target": "vicuna-7b"}
UNFUSED = {"method": "model", "neuron": {"fused": False}}
SAMPLED = {"method": "eagle", "rule": "rejection"}


def sampling(**options: Any) -> dict[str, Any]:
    return {"neuron": {"sampling": options}}


def tree(*paths: list[int]) -> dict[str, Any]:
    return {"draft_fields": {"tree": list(paths)}}


@pytest.mark.parametrize(
    ("code", "violation", "passing"),
    [
        ("rule", {"method": "model", "rule": "rejection"}, {**UNFUSED, "rule": "rejection"}),
        ("rule", {**VICUNA, "rule": "typical"}, {**VICUNA, "rule": "greedy"}),
        (
            "rule",
            {"method": "eagle", "rule": "rejection", **tree([0], [1])},
            {"method": "eagle", "rule": "rejection"},
        ),
        (
            "rule",
            {"method": "eagle3", "rule": "lenient"},
            {"method": "eagle3", "rule": "rejection"},
        ),
        (
            "draft-sampled",
            {"method": "eagle", "rule": "rejection", "draft_fields": {"sampled": True}},
            {**UNFUSED, "rule": "rejection", "draft_fields": {"sampled": True}},
        ),
        (
            "host-logits",
            {"method": "ngram", "neuron": {"sample_on_device": True}},
            {"method": "none", "neuron": {"sample_on_device": True}},
        ),
        (
            "host-logits",
            {"method": "model", "neuron": {"fused": False, "sample_on_device": True}},
            UNFUSED,
        ),
        ("sampling-unused", sampling(top_k=5), {"method": "eagle", **sampling(top_k=5)}),
        (
            "medusa-top-k",
            {**VICUNA, **sampling(global_topk=256)},
            {**VICUNA, **sampling(global_topk=10)},
        ),
        (
            "top-k-vocabulary",
            {"method": "eagle", "target": config("llama-8b", vocab_size=252)},
            {"method": "eagle", "target": config("llama-8b", vocab_size=256)},
        ),
        (
            "top-k-vocabulary",
            {"method": "eagle", **sampling(global_topk=200_000)},
            {"method": "eagle", **sampling(global_topk=128_256)},
        ),
        (
            "sampling-value",
            {**SAMPLED, **sampling(top_k=0)},
            {**SAMPLED, **sampling(top_k=1)},
        ),
        (
            "sampling-value",
            {**SAMPLED, **sampling(top_k=65, global_topk=64)},
            {**SAMPLED, **sampling(top_k=64, global_topk=64)},
        ),
        (
            "sampling-value",
            {**SAMPLED, **sampling(top_p=0.0)},
            {**SAMPLED, **sampling(top_p=1.0)},
        ),
        (
            "sampling-value",
            {**SAMPLED, **sampling(top_p=1.1)},
            {**SAMPLED, **sampling(top_p=0.1)},
        ),
        (
            "sampling-value",
            {**SAMPLED, **sampling(temperature=0.0)},
            {**SAMPLED, **sampling(temperature=0.1)},
        ),
        (
            "deterministic",
            {**SAMPLED, **sampling(deterministic=True)},
            {"method": "eagle", **sampling(deterministic=True)},
        ),
        (
            "top-k-kernel",
            {**SAMPLED, "shape": {"batch_size": 4}, **sampling(top_k_kernel_enabled=False)},
            {**SAMPLED, "shape": {"batch_size": 5}, **sampling(top_k_kernel_enabled=False)},
        ),
        (
            "top-k-kernel",
            {**SAMPLED, **sampling(top_k_kernel_enabled=False)},
            {**SAMPLED, "neuron": {"sdk": "2.28", "sampling": {"top_k_kernel_enabled": False}}},
        ),
        ("medusa-rank", {**VICUNA, **tree([0], [10])}, {**VICUNA, **tree([0], [9])}),
        (
            "tree-leaf-depths",
            {"method": "eagle", **tree([0], [1], [0, 0])},
            {"method": "eagle", **tree([0], [1], [0, 0], [1, 0])},
        ),
        (
            "tree-rank-gap",
            {"method": "eagle", **tree([0], [2])},
            {"method": "eagle", **tree([0], [1])},
        ),
    ],
)
def test_sampling(code: str, violation: dict[str, Any], passing: dict[str, Any]) -> None:
    assert_found(code, violation, passing)


def test_a_law_of_the_devices_own_filter_is_told() -> None:
    assert_found("sampling-truncated", SAMPLED, {"method": "eagle"}, "warning")
    small = config("llama-8b", vocab_size=256)
    assert "sampling-truncated" not in codes_of(**SAMPLED, target=small)
    assert "sampling-truncated" not in codes_of(**SAMPLED, **sampling(global_topk=0))
    (finding,) = (f for f in findings_of(**SAMPLED, **sampling(global_topk=64))
                  if f.code == "neuron-sampling-truncated")  # fmt: skip
    assert "the 64 likeliest tokens only" in finding.message


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fields", [UNFUSED, {"method": "ngram"}, {"method": "none"}])
def test_the_host_verifies_by_any_rule(fields: dict[str, Any], rule: str) -> None:
    assert errors_of(**fields, rule=rule) == set()


@pytest.mark.parametrize(
    ("method", "rules"),
    [("model", {"greedy"}), ("eagle", {"greedy", "rejection"}),
     ("eagle3", {"greedy", "rejection"}), ("medusa", {"greedy"})],
)  # fmt: skip
def test_what_each_graph_can_verify(method: str, rules: set[str]) -> None:
    fields = VICUNA if method == "medusa" else {"method": method}
    assert {rule for rule in RULES if "rule" not in codes_of(**fields, rule=rule)} == rules


def test_a_fused_draft_model_is_told_of_the_host() -> None:
    (finding,) = (f for f in findings_of(method="model", rule="rejection") if "rule" in f.code)
    assert "neuron.fused = false" in finding.remedy


def test_medusa_trees_may_be_skewed_and_have_gaps() -> None:
    assert errors_of(**VICUNA, **tree([0], [4], [0, 0])) == set()


def test_depths_and_ranks_are_told() -> None:
    found = {f.code: f.message for f in findings_of(method="eagle", **tree([0], [1], [0, 0]))}
    assert "leaves at depths 1, 2:" in found["neuron-tree-leaf-depths"]
    found = {f.code: f.message for f in findings_of(**VICUNA, **tree([0], [12]))}
    assert "draft.tree has rank 12:" in found["neuron-medusa-rank"]


def test_drawn_drafts_are_told_of_the_host_where_it_may_verify() -> None:
    for method, is_told in (("model", True), ("eagle", False)):
        findings = findings_of(method=method, rule="rejection", draft_fields={"sampled": True})
        (finding,) = (f for f in findings if f.code == "neuron-draft-sampled")
        assert ("neuron.fused to false" in finding.remedy) is is_told
