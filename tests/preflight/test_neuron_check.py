"""Builds for Neuron through `check`: from files, beside the reference backend, at once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
from tiny import change_config

from neuron_spec.checkpoints import PreparedCheckpoint, prepare
from neuron_spec.cli.main import cli
from neuron_spec.errors import PreflightError
from neuron_spec.platforms.neuron_packages import OLDEST_REAL_VERSIONS, PackageState
from neuron_spec.preflight import Finding, check, raise_on_errors
from neuron_spec.preflight.neuron import packages
from neuron_spec.spec import BuildSpec, load_spec

CHIP = {"instance": "trn2.3xlarge", "tp_degree": 2}


def written(folder: Path, *, neuron: dict[str, Any] | None = None, **draft: Any) -> BuildSpec:
    sections: dict[str, dict[str, Any]] = {
        "target": {"model": "target"},
        "draft": draft,
        "shape": {"max_prompt_tokens": 32, "max_total_tokens": 64},
        "neuron": CHIP if neuron is None else neuron,
    }
    return load_spec(tiny.write_spec(folder / "build.toml", **sections))


def codes(findings: list[Finding], severity: str = "error") -> set[str]:
    return {finding.code for finding in findings if finding.severity == severity}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny.write_target(tmp_path / "target")
    return tmp_path


def test_a_target_alone_passes(folder: Path) -> None:
    assert codes(check(written(folder))) == set()


def test_a_spec_without_the_table_is_told_nothing_of_neuron(spec: BuildSpec) -> None:
    assert not [f for f in check(spec) if f.backend == "neuron"]


def test_an_eagle_head_passes_once_it_is_prepared(folder: Path) -> None:
    tiny.write_eagle(folder / "eagle")
    spec = written(folder, method="eagle", model="eagle")
    assert codes(check(spec)) == {"draft-unprepared"}
    assert codes(check(spec, prepare(spec))) == set()


def test_heads_are_counted_for_the_memory_of_a_core(folder: Path) -> None:
    tiny_heads.write_medusa(folder / "medusa")
    spec = written(folder, method="medusa", model="medusa", num_draft_tokens=2)
    findings = check(spec, prepare(spec))
    assert "neuron-target-vocabulary-tp" in codes(findings), "259 rows on two cores"
    one_core = written(folder, method="medusa", model="medusa", num_draft_tokens=2,
                       neuron={**CHIP, "tp_degree": 1})  # fmt: skip
    assert codes(check(one_core, prepare(one_core))) == set()


@pytest.mark.parametrize(
    ("tree", "is_refused"),
    [([[0], [1], [2], [0, 0]], False), ([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], True)],
)
def test_a_tree_has_a_level_a_head_and_as_many_nodes_as_it_likes(
    folder: Path, tree: list[list[int]], is_refused: bool
) -> None:
    tiny_heads.write_medusa(folder / "medusa", num_heads=3)
    spec = written(folder, method="medusa", model="medusa", tree=tree)
    findings = [f for f in check(spec) if f.code == "draft-length-beyond-heads"]
    assert bool(findings) is is_refused
    if is_refused:
        assert "levels of draft.tree 4" in findings[0].message and "3 heads" in findings[0].message
        assert findings[0].remedy == "set draft.tree to at most 3 levels"


def test_biases_of_a_draft_are_seen_in_its_file(folder: Path) -> None:
    tiny.write_eagle(folder / "eagle", model_type="qwen2", attention_bias=True)
    spec = written(folder, method="eagle", model="eagle")
    assert "neuron-draft-biases" in codes(check(spec))


def test_a_target_that_is_not_read_further_is_known_by_its_type(folder: Path) -> None:
    change_config(folder / "target", model_type="qwen2_vl", hidden_size=...)
    found = {f.code: f for f in check(written(folder, method="ngram"))}
    assert "target-unreadable" in found
    assert "switches speculation off" in found["neuron-family-method"].message


def test_what_one_backend_lacks_does_not_stop_the_other(folder: Path) -> None:
    change_config(folder / "target", model_type="mistral", sliding_window=128)
    findings = check(written(folder, method="ngram"))
    assert codes(findings) == {"target-sliding-window"}
    raise_on_errors(findings, "neuron")
    with pytest.raises(PreflightError, match="target-sliding-window"):
        raise_on_errors(findings, "reference")

    findings = check(written(folder, neuron={"instance": "trn9", "tp_degree": 1}))
    assert codes(findings) == {"target-sliding-window", "neuron-instance-unknown"}
    with pytest.raises(PreflightError, match=r"found 1 error\(s\)") as caught:
        raise_on_errors(findings, "neuron")
    assert [f.code for f in caught.value.findings if f.severity == "error"] == [
        "neuron-instance-unknown"
    ]
    with pytest.raises(PreflightError, match=r"found 2 error\(s\)"):
        raise_on_errors(findings)


def test_keys_of_a_model_that_only_nxdi_computes_are_not_missing_to_it(folder: Path) -> None:
    change_config(folder / "target", model_type="qwen3_moe", num_experts=4)
    tiny.change_tensors(folder / "target", model__layers__0__mlp__up_proj__weight=None)
    findings = check(written(folder, neuron={**CHIP, "tp_degree": 1}))
    assert codes(findings) == {"target-keys-missing", "target-model-type"}
    raise_on_errors(findings, "neuron")


@pytest.mark.parametrize(
    ("method", "fields"),
    [("mtp", {}), ("early-exit", {"exit_layer": 1}), ("hydra", {"model": "hydra"})],
)
def test_what_the_reference_backend_alone_drafts_with(
    folder: Path, method: str, fields: dict[str, Any]
) -> None:
    tiny_heads.write_mtp_target(folder / "target")
    if method == "hydra":
        tiny_heads.write_hydra(folder / "hydra")
    spec = written(folder, method=method, **{"num_draft_tokens": 1, **fields})
    findings = check(spec, prepare(spec))
    assert codes(findings) == {"neuron-method"}
    raise_on_errors(findings, "reference")


@pytest.mark.parametrize(
    ("states", "severity", "told"),
    [
        (
            ("absent", "absent"),
            "info",
            "inference, torch-neuronx: not installed",
        ),
        (("ready", "absent"), "info", "torch-neuronx: not installed"),
        (("placeholder", "absent"), "warning", "neuronx-distributed-inference 0.1: placeholder"),
        (("ready", "too old"), "warning", "torch-neuronx 0.1: too old"),
        (("ready", "ready"), None, ""),
    ],
)
def test_what_this_machine_can_do_is_told(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: tuple[Any, Any],
    severity: str | None,
    told: str,
) -> None:
    def found() -> tuple[PackageState, ...]:
        return tuple(
            PackageState(name, state, None if state == "absent" else "0.1")
            for name, state in zip(OLDEST_REAL_VERSIONS, states, strict=True)
        )

    monkeypatch.setattr(packages, "neuron_packages", found)
    findings = [f for f in check(written(folder)) if f.code == "neuron-packages"]
    assert [f.severity for f in findings] == ([severity] if severity else [])
    assert not findings or told in findings[0].message
    raise_on_errors(findings, "neuron")


def test_check_ends_by_what_the_spec_is_for(folder: Path) -> None:
    from click.testing import CliRunner

    change_config(folder / "target", model_type="mistral", sliding_window=128)
    written(folder)
    result = CliRunner().invoke(cli, ["check", "build.toml"])
    assert result.exit_code == 0, result.output
    assert "(reference backend only) target-sliding-window" in " ".join(result.output.split())
    written(folder, neuron={"instance": "trn9"})
    result = CliRunner().invoke(cli, ["check", "build.toml"])
    assert result.exit_code == 2
    assert "(neuron backend only) neuron-instance-unknown" in " ".join(result.output.split())


def test_checking_for_neuron_needs_no_torch_and_no_second(folder: Path) -> None:
    tiny.write_eagle(folder / "eagle")
    spec = written(folder, method="eagle", model="eagle")
    prepare(spec)
    code = (
        "import sys; from neuron_spec import check, load_spec\n"
        "check(load_spec('build.toml'))\n"
        "assert not {'torch', 'transformers', 'neuronx_distributed_inference'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    started = time.perf_counter()
    check(spec)
    assert time.perf_counter() - started < 1


def test_prepared_checkpoints_may_be_handed_over(folder: Path) -> None:
    spec = written(folder)
    assert check(spec, PreparedCheckpoint(folder / "target", None)) == check(spec)
