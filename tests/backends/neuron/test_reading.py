"""Facts out of directories, and the command that shows the configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import tiny
from click.testing import CliRunner
from conftest import GOLDEN

from neuron_spec.backends.neuron.facts import DraftFacts, TargetFacts
from neuron_spec.backends.neuron.reading import facts_here, facts_of
from neuron_spec.checkpoints import prepare
from neuron_spec.checkpoints.source import find_model
from neuron_spec.cli.main import cli
from neuron_spec.spec import BuildSpec, load_spec

TARGET = GOLDEN / "target"


@pytest.mark.parametrize(("head", "expected"), [("eagle1", False), ("eagle1_norm", True)])
def test_the_file_decides_about_the_input_norm(spec: BuildSpec, head: str, expected: bool) -> None:
    facts = facts_of(spec, TARGET, GOLDEN / head)
    assert facts.target == TargetFacts("llama", str(TARGET))
    assert facts.draft == DraftFacts("llama", str(GOLDEN / head), has_input_norm=expected)


def test_medusa_heads_are_counted_in_the_file(spec: BuildSpec, tmp_path: Path) -> None:
    medusa = shutil.copytree(GOLDEN / "medusa", tmp_path / "medusa")
    (medusa / "medusa_heads.safetensors").rename(medusa / "model.safetensors")
    assert facts_of(spec, None, medusa).draft.num_medusa_heads == 3


def test_a_draft_model_is_read_for_its_type(spec: BuildSpec) -> None:
    of_model = spec.model_copy(
        update={"draft": spec.draft.model_copy(update={"method": "model", "model": "d"})}
    )
    assert facts_of(of_model, None, GOLDEN / "draft").draft == DraftFacts(
        "llama", str(GOLDEN / "draft")
    )


def test_the_prepared_draft_comes_before_the_published_one(
    spec: BuildSpec, eagle_directory: Path
) -> None:
    published = facts_here(spec).draft
    assert (published.directory, published.has_input_norm) == (None, False)
    prepared = prepare(spec)
    assert facts_here(spec).draft.directory == str(prepared.draft)
    (eagle_directory / "config.json").unlink()
    assert facts_here(spec).draft.has_input_norm is False


def test_a_published_draft_that_cannot_be_read_is_unknown(
    spec: BuildSpec, eagle_directory: Path
) -> None:
    (eagle_directory / "config.json").unlink()
    assert facts_here(spec).draft == DraftFacts()


def test_a_draft_model_is_where_the_spec_says(spec: BuildSpec, target_directory: Path) -> None:
    draft = spec.draft.model_copy(update={"method": "model", "model": str(target_directory)})
    facts = facts_here(spec.model_copy(update={"draft": draft}))
    assert facts.draft == DraftFacts("llama", str(target_directory))
    assert facts.target.directory == str(target_directory)


def test_models_that_are_not_here_are_unknown_and_not_downloaded(
    spec: BuildSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    far = spec.model_copy(
        update={
            "target": spec.target.model_copy(update={"model": "nobody/nothing"}),
            "draft": spec.draft.model_copy(update={"model": "nobody/nothing-else"}),
        }
    )
    facts = facts_here(far)
    assert (facts.target, facts.draft) == (TargetFacts(), DraftFacts())


def test_a_model_in_the_hubs_cache_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def cached(repository: str, name: str, *, revision: str | None) -> str | None:
        asked.append((repository, name, revision))
        return str(tmp_path / "snapshot" / name) if repository == "a/here" else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    assert find_model("a/here@v1", tmp_path) == tmp_path / "snapshot"
    assert find_model("a/away", tmp_path) is None
    assert asked == [("a/here", "config.json", "v1"), ("a/away", "config.json", None)]
    (tmp_path / "a" / "here").mkdir(parents=True)
    assert find_model("a/here", tmp_path) == tmp_path / "a" / "here"
    assert find_model("../elsewhere", tmp_path) is None


def test_the_demo_target_is_found_once_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_SPEC_CACHE", str(tmp_path))
    assert find_model("demo:smollm2-135m-instruct", tmp_path) is None
    made = tmp_path / "smollm2-135m-instruct"
    made.mkdir()
    (made / "conversion.json").touch()
    assert find_model("demo:smollm2-135m-instruct", tmp_path) == made


@pytest.fixture
def neuron_spec_path(tmp_path: Path, target_directory: Path, eagle_directory: Path) -> Path:
    return tiny.write_spec(
        tmp_path / "tiny.toml",
        target={"model": "target", "dtype": "bfloat16"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        neuron={"instance": "trn2.3xlarge", "tp_degree": 2},
    )


def show(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["check", str(path), "--show-config", *options])
    return result.exit_code, result.output


def test_the_configuration_is_shown_with_its_reasons(neuron_spec_path: Path) -> None:
    exit_code, text = show(neuron_spec_path)
    assert exit_code == 0
    assert "NeuronLlamaForCausalLM: NeuronConfig" in text
    assert "  speculation_length = 4  # draft.num_draft_tokens + 1" in text
    assert "is not in the draft's file" in text and "assumed" not in text
    assert "  worker_cls = 'NeuronLlamaModel'" in text


def test_the_configuration_is_data_for_machines(neuron_spec_path: Path) -> None:
    exit_code, text = show(neuron_spec_path, "--json")
    config = json.loads(text)
    assert exit_code == 0 and config["assumptions"] == []
    assert config["neuron_config"]["on_device_sampling_config"] == {
        "do_sample": False, "dynamic": False,
    }  # fmt: skip
    assert config["draft"]["neuron_config_changes"]["is_eagle_draft"] is True
    assert config["fused_spec_config"]["draft_model_path"] == "build/tiny/draft"
    assert config["draft"]["path"] == "build/tiny/draft"
    assert "speculation_length" in config["reasons"]


def test_what_nxdi_cannot_do_is_an_error_of_the_input(spec_path: Path) -> None:
    from neuron_spec.errors import SpecError

    result = CliRunner().invoke(cli, ["check", str(spec_path), "--show-config"])
    assert isinstance(result.exception, SpecError) and "[neuron]" in str(result.exception)
    assert load_spec(spec_path).neuron is None
