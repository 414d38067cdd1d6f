"""`neuron-spec export` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from neuron_spec.cli.export import command, sagemaker
from neuron_spec.errors import NeuronSpecError
from neuron_spec.export.sagemaker import DEFAULT_INSTANCE, DEFAULT_MAX_RUNTIME

COMPILE = Path(__file__).parents[2] / "compile"
EAGLE3 = COMPILE / "llama-3.1-8b-eagle3.trn2.toml"
ROLE = "arn:aws:iam::123456789012:role/r"
JOB = ("--role", ROLE, "--model", "s3://b/target/", "--output", "s3://b/head/")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def as_json(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.output)
    return data


@pytest.fixture
def spec_with_paths(tmp_path: Path) -> Path:
    """A spec whose target is a directory beside it, and whose draft is a hub id with a revision."""
    (tmp_path / "target").mkdir()
    config = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    (tmp_path / "target" / "config.json").write_text(json.dumps(config))
    path = tmp_path / "mine.toml"
    path.write_text(
        '[target]\nmodel = "target"\n[draft]\nmethod = "eagle3"\nmodel = "owner/head@v2"\n'
    )
    return path


@pytest.mark.parametrize("system", ["vllm", "vllm-nxdi", "vllm-neuron"])
def test_text_is_the_command_and_what_is_lost(system: str) -> None:
    data, text = as_json(system, EAGLE3), run(system, EAGLE3).output
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct \\\n" in text
    for loss in data["lost"]:
        assert f"lost {loss['field']}: {loss['reason']}\n" in text
    for note in data["notes"]:
        assert f"note {note}\n" in text
    assert ("nothing of the spec is lost" in text) == (not data["lost"])


def test_local_paths_become_absolute_and_revisions_options(spec_with_paths: Path) -> None:
    options = as_json("vllm", spec_with_paths)
    assert options["command"][:3] == ["vllm", "serve", str(spec_with_paths.parent / "target")]
    config = options["options"]["--speculative-config"]
    assert (config["model"], config["revision"]) == ("owner/head", "v2")


def test_a_path_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[target]\nmodel = "./missing/folder"\n')
    result = run("vllm", path)
    assert isinstance(result.exception, NeuronSpecError)
    assert "./missing/folder: is not on this machine" in str(result.exception)


@pytest.mark.parametrize("system", ["vllm-nxdi", "vllm-neuron"])
def test_the_artifact_is_of_our_choice(system: str) -> None:
    def folder(*options: str) -> str:
        environment: dict[str, str] = as_json(system, EAGLE3, *options)["environment"]
        return environment["NEURON_COMPILED_ARTIFACTS"]

    assert folder("--artifact", "/models/compiled") == "/models/compiled"
    assert folder() == str(Path("build", EAGLE3.stem, system).absolute())


def test_gpus_are_given() -> None:
    data = as_json("vllm", EAGLE3, "--tensor-parallel", "4")
    assert data["options"]["--tensor-parallel-size"] == 4
    assert not any("one GPU" in note for note in data["notes"])


def test_sagemaker(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    data = as_json(
        "sagemaker", EAGLE3, *JOB, "--training-data", "s3://b/rows", "--training-file", rows,
        "--name", "job", "--instance-type", "ml.g6.12xlarge", "--max-runtime", "60",
    )  # fmt: skip
    request = data["options"]["--cli-input-json"]
    assert request["OptimizationJobName"] == "job"
    assert request["DeploymentInstanceType"] == "ml.g6.12xlarge"
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 60}
    assert "training data: 1 rows, openai-completions" in data["notes"]
    rows.write_text("{}\n")
    result = run("sagemaker", EAGLE3, *JOB, "--training-file", rows)
    assert isinstance(result.exception, NeuronSpecError)


def test_sagemaker_reads_the_targets_architecture(spec_with_paths: Path) -> None:
    result = run("sagemaker", spec_with_paths, *JOB)
    assert isinstance(result.exception, NeuronSpecError)
    assert "found MistralForCausalLM" in str(result.exception)


def test_sagemaker_says_which_options_are_missing() -> None:
    result = run("sagemaker", EAGLE3, "--role", ROLE)
    assert result.exit_code == 2
    assert "needs --model, --output" in result.output


def test_the_service_draft_lists_its_restrictions() -> None:
    arguments = ("sagemaker", EAGLE3, "--service-draft", "meta-textgeneration-llama-3-70b")
    data, text = as_json(*arguments), run(*arguments).output
    assert "enable_network_isolation=True" in text
    for restriction in data["restrictions"]:
        assert f"restriction {restriction}\n" in text


def test_defaults_are_the_rooms() -> None:
    defaults = {parameter.name: parameter.default for parameter in sagemaker.params}
    assert defaults["instance_type"] == DEFAULT_INSTANCE
    assert defaults["max_runtime"] == DEFAULT_MAX_RUNTIME


@pytest.mark.parametrize("system", ["vllm", "vllm-nxdi", "vllm-neuron", "sagemaker"])
def test_every_system_has_help_with_an_example(system: str) -> None:
    assert f"Example: neuron-spec export {system}" in run(system, "--help").output


@pytest.mark.parametrize("arguments", [("vllm",), ("vllm-nxdi",), ("sagemaker", *JOB)])
def test_it_answers_without_torch(arguments: tuple[str, ...]) -> None:
    system, *options = arguments
    words = [system, str(EAGLE3), *options]
    code = (
        "import sys; from neuron_spec.cli.export import command; "
        f"command({words!r}, standalone_mode=False); "
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "False False", result.stderr
