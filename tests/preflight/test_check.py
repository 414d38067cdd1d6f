"""What would fail later is found at once, all of it, each with its mend."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file

from neuron_spec.checkpoints import PreparedCheckpoint, prepare
from neuron_spec.errors import CheckpointError, PreflightError
from neuron_spec.preflight import Finding, check, raise_on_errors
from neuron_spec.preflight.check import locate
from neuron_spec.spec import BuildSpec, load_spec


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def only(findings: list[Finding], code: str) -> Finding:
    assert codes(findings) == [code]
    return findings[0]


@pytest.fixture
def prepared(spec: BuildSpec) -> PreparedCheckpoint:
    return prepare(spec)


def with_shape(spec: BuildSpec, **shape: int) -> BuildSpec:
    return spec.model_copy(update={"shape": spec.shape.model_copy(update=shape)})


def test_a_prepared_build_has_no_findings(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    assert check(spec, prepared) == []
    assert check(spec) == [], "the prepared draft is found in the build folder"
    assert locate(spec) == PreparedCheckpoint(prepared.target, prepared.draft)


def test_a_target_alone_has_no_findings(spec: BuildSpec) -> None:
    assert check(spec.model_copy(update={"draft": type(spec.draft)()})) == []


def test_an_unprepared_draft_names_the_head_and_the_command(spec: BuildSpec) -> None:
    finding = only(check(spec), "draft-unprepared")
    assert finding.severity == "error"
    assert "lm_head.weight" in finding.message and "fc_bias: true" in finding.message
    assert str(spec.base_directory / "eagle") in finding.message
    assert finding.remedy == f"run: neuron-spec prepare {spec.base_directory / 'tiny.toml'}"
    assert "NxDI" in finding.source


@pytest.mark.parametrize("field", ["hidden_size", "vocab_size"])
def test_a_draft_of_another_size(spec: BuildSpec, tmp_path: Path, field: str) -> None:
    tiny.write_eagle(tmp_path / "eagle", **{field: 40})
    findings = {finding.code: finding for finding in check(spec)}
    finding = findings[f"draft-{field.replace('_', '-')}"]
    theirs = {"hidden_size": 32, "vocab_size": 259}[field]
    assert f"{field}: draft 40, target {theirs}" in finding.message
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("total", "is_refused"), [(252, False), (253, True), (256, True), (300, True)]
)
def test_lengths_beyond_the_context(
    spec: BuildSpec, prepared: PreparedCheckpoint, total: int, is_refused: bool
) -> None:
    """256 positions; a step looks k + 1 = 4 ahead."""
    findings = check(with_shape(spec, max_total_tokens=total), prepared)
    assert codes(findings) == (["length-beyond-context"] if is_refused else [])
    if is_refused:
        assert "at most 252" in findings[0].remedy


def test_no_room_for_output_is_a_warning(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    finding = only(check(with_shape(spec, max_prompt_tokens=96), prepared), "no-room-for-output")
    assert finding.severity == "warning"
    raise_on_errors([finding])


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("model_type", "gpt_neox", "model-type"),
        ("hidden_act", "gelu", "hidden-act"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0}, "rope-scaling"),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}, "rope-scaling"),
        ("rope_parameters", {"rope_type": "longrope", "factor": 2.0}, "rope-scaling"),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_arithmetic_that_is_not_computed_is_refused_by_name(
    spec: BuildSpec, prepared: PreparedCheckpoint, role: str, field: str, value: Any, code: str
) -> None:
    directory = getattr(prepared, role)
    change_config(directory, **{field: value})
    finding = only(check(spec, prepared), f"{role}-{code}")
    assert finding.severity == "error" and f"the {role}'s" in finding.message
    name = value if isinstance(value, str) else value.get("rope_type") or value["type"]
    assert name in finding.message
    assert "llama" in finding.remedy or "silu" in finding.remedy or "linear" in finding.remedy


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 128}, ["target-sliding-window"]),
        ({"model_type": "mistral", "sliding_window": None}, []),
        ({"model_type": "llama", "sliding_window": 128}, []),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, ["draft-rope-scaling-differs"]),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            ["target-rope-scaling-linear", "draft-rope-scaling-differs"],
        ),
        ({"rope_scaling": {"rope_type": "default"}}, []),
    ],
)
def test_sliding_windows_and_known_scalings(
    spec: BuildSpec, prepared: PreparedCheckpoint, changes: dict[str, Any], expected: list[str]
) -> None:
    change_config(prepared.target, **changes)
    assert codes(check(spec, prepared)) == expected


def test_models_in_each_others_place(spec: BuildSpec, tmp_path: Path) -> None:
    swapped = PreparedCheckpoint(tmp_path / "eagle", tmp_path / "target")
    findings = codes(check(spec, swapped))
    assert "target-family" in findings and "draft-family" in findings


def test_incomplete_checkpoints_name_the_tensors(
    spec: BuildSpec, prepared: PreparedCheckpoint
) -> None:
    assert prepared.draft is not None
    tiny.change_tensors(prepared.target, model__norm__weight=None, extra=torch.ones(1))
    tiny.change_tensors(
        prepared.draft,
        fc__bias=torch.ones(3),
        extra=torch.ones(1),
        layers__0__mlp__up_proj__weight=None,
    )
    findings = {finding.code: finding for finding in check(spec, prepared)}
    assert "model.norm.weight" in findings["target-keys-missing"].message
    assert "layers.0.mlp.up_proj.weight" in findings["draft-keys-missing"].message
    assert "fc.bias: found [3]" in findings["draft-keys-misshapen"].message
    assert findings["draft-keys-unexpected"].severity == "error"
    assert findings["target-keys-unexpected"].severity == "warning"
    assert len(findings) == 5
    assert codes(check(spec, prepared))[-1] == "target-keys-unexpected", "warnings come last"


def test_many_missing_tensors_are_counted(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    names = load_file(prepared.target / "model.safetensors")
    gone = {n.replace(".", "__"): None for n in names if n.startswith("model.layers.1.")}
    tiny.change_tensors(prepared.target, **gone)
    finding = only(check(spec, prepared), "target-keys-missing")
    assert finding.message.endswith(" and 3 more") and len(gone) == 9


def test_a_draft_of_more_layers(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    assert prepared.draft is not None
    change_config(prepared.draft, num_hidden_layers=2)
    assert "2" in only(check(spec, prepared), "draft-layers").message


def test_an_unreadable_checkpoint_is_a_finding_and_the_rest_is_still_checked(
    spec: BuildSpec, prepared: PreparedCheckpoint
) -> None:
    (prepared.target / "model.safetensors").write_bytes(b"damaged")
    assert prepared.draft is not None
    (prepared.draft / "config.json").write_text("{")
    findings = {f.code: f for f in check(with_shape(spec, max_prompt_tokens=96), prepared)}
    assert findings.keys() == {"target-unreadable", "draft-unreadable", "no-room-for-output"}
    assert "model.safetensors" in findings["target-unreadable"].message
    assert "config.json" in findings["draft-unreadable"].message
    assert "\n" not in findings["target-unreadable"].message


def test_all_findings_come_at_once(spec: BuildSpec, tmp_path: Path) -> None:
    tiny.write_eagle(tmp_path / "eagle", vocab_size=300, hidden_act="relu")
    change_config(tmp_path / "target", hidden_act="gelu", model_type="gpt2")
    findings = check(with_shape(spec, max_total_tokens=300, max_prompt_tokens=300))
    assert set(codes(findings)) == {
        "length-beyond-context", "target-model-type", "target-hidden-act", "draft-hidden-act",
        "draft-unprepared", "draft-vocab-size", "no-room-for-output",
    }  # fmt: skip
    assert [finding.severity for finding in findings] == ["error"] * 6 + ["warning"]
    with pytest.raises(PreflightError, match=r"found 6 error\(s\)") as caught:
        raise_on_errors(findings)
    assert caught.value.findings == tuple(findings) and caught.value.exit_code == 2
    assert all(finding.remedy in str(caught.value) for finding in findings[:-1])


@pytest.mark.parametrize("role", ["draft", "target"])
def test_a_spec_that_was_edited_after_prepare_is_noticed(
    spec: BuildSpec, prepared: PreparedCheckpoint, tmp_path: Path, role: str
) -> None:
    """The earlier draft would fit in every shape, and be the wrong one."""
    write = {"draft": tiny.write_eagle, "target": tiny.write_target}[role]
    write(tmp_path / "other", seed=5)
    section = getattr(spec, role).model_copy(update={"model": "other"})
    edited = spec.model_copy(update={role: section})
    finding = only(check(edited), "draft-stale")
    assert str(tmp_path / "other") in finding.message
    assert "neuron-spec prepare" in finding.remedy
    prepare(edited)
    assert check(edited) == []


def test_a_prepared_draft_may_be_named_directly(
    spec: BuildSpec, prepared: PreparedCheckpoint, tmp_path: Path
) -> None:
    assert prepared.draft is not None
    prepared.draft.rename(tmp_path / "ready")
    draft = spec.draft.model_copy(update={"model": "ready"})
    assert check(spec.model_copy(update={"draft": draft})) == []


def test_a_source_that_was_removed_after_prepare_is_no_finding(
    spec: BuildSpec, prepared: PreparedCheckpoint, tmp_path: Path
) -> None:
    (tmp_path / "eagle").rename(tmp_path / "gone")
    assert check(spec) == []


def test_a_damaged_record_is_stale(spec: BuildSpec, prepared: PreparedCheckpoint) -> None:
    assert prepared.draft is not None
    (prepared.draft / "prepared.json").write_text("{}")
    assert set(codes(check(spec))) == {"draft-stale"}


def test_a_missing_model_is_told(spec: BuildSpec, tmp_path: Path) -> None:
    target = spec.target.model_copy(update={"model": "./none"})
    with pytest.raises(CheckpointError, match="no such directory"):
        check(spec.model_copy(update={"target": target}))


def test_a_finding_is_plain_data() -> None:
    finding = Finding("code", "info", "message", "remedy", "source")
    assert finding.as_dict() == {
        "code": "code", "severity": "info", "message": "message", "remedy": "remedy",
        "source": "source", "backend": "any",
    }  # fmt: skip


def test_checking_safetensors_needs_no_torch(spec: BuildSpec, spec_path: Path) -> None:
    prepare(spec)
    code = (
        "import sys; from neuron_spec import check, load_spec\n"
        f"assert check(load_spec({str(spec_path)!r})) == []\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert load_spec(spec_path) == spec
