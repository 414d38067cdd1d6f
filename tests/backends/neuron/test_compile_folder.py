"""compile/: every spec for Neuron renders, and what runs them on a machine names what exists."""

from __future__ import annotations

import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from neuron_spec.backends.neuron.config import render
from neuron_spec.backends.neuron.facts import NOTHING_KNOWN
from neuron_spec.backends.neuron.reading import facts_of
from neuron_spec.cli.main import cli
from neuron_spec.platforms.nxdi_keywords import keywords
from neuron_spec.spec import load_spec
from neuron_spec.trees import Tree

COMPILE = Path(__file__).parents[3] / "compile"
SPECS = [path for path in sorted(COMPILE.glob("*.toml")) if load_spec(path).neuron]
IMAGE = "public.ecr.aws/neuron/pytorch-inference-neuronx"


def test_there_are_specs_of_every_kind() -> None:
    specs = [load_spec(path) for path in SPECS]
    methods = {spec.draft.method for spec in specs}
    assert methods >= {"none", "model", "medusa", "eagle", "eagle3"}
    generations = {spec.neuron.instance[:4] for spec in specs if spec.neuron}
    assert generations == {"inf2", "trn1", "trn2"}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_spec_renders_with_keywords_of_its_release(path: Path) -> None:
    spec = load_spec(path)
    assert spec.neuron is not None
    config = render(spec, NOTHING_KNOWN)
    known = keywords("neuron_config", spec.neuron.sdk)
    assert config.neuron_config.keys() <= known.keys()
    assert config.draft is None or config.draft.changes.keys() <= known.keys()
    arguments = config.neuron_arguments
    needed = spec.shape.max_total_tokens + spec.num_draft_tokens + 1
    assert arguments["seq_len"] >= (needed if spec.speculates else needed - 1)
    assert arguments["max_context_length"] >= spec.shape.max_prompt_tokens


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_trn1_and_inf2_name_the_last_release_that_runs_there(path: Path) -> None:
    neuron = load_spec(path).neuron
    assert neuron is not None
    expected = "2.29" if neuron.instance.startswith("trn2") else "2.28"
    assert neuron.sdk == expected


def test_the_files_of_the_repository_decide_where_they_are_here() -> None:
    spec = load_spec(COMPILE / "smollm2-135m-eagle.inf2.toml")
    facts = facts_of(spec, None, COMPILE.parent / "checkpoints" / "smollm2-135m-instruct-eagle")
    config = render(spec, facts)
    assert config.neuron_config["enable_eagle_draft_input_norm"].value is False
    assert [text for text in config.assumptions if "norm" in text] == []
    assert any("norm" in text for text in render(spec).assumptions)


def test_the_published_configuration_is_rendered_as_published() -> None:
    """The flags of SDK tutorial trn2-llama3.3-70b-tutorial.rst, scenario 2."""
    arguments = render(load_spec(COMPILE / "llama-3.3-70b-model.trn2.toml")).neuron_arguments
    published = {
        "torch_dtype": "bfloat16", "tp_degree": 64, "batch_size": 1, "max_context_length": 12288,
        "seq_len": 12800, "fused_qkv": True, "sequence_parallel_enabled": True,
        "qkv_kernel_enabled": True, "attn_kernel_enabled": True, "mlp_kernel_enabled": True,
        "cc_pipeline_tiling_factor": 1, "enable_fused_speculation": True, "speculation_length": 7,
        "logical_nc_config": 2, "enable_bucketing": True,
    }  # fmt: skip
    assert {name: arguments[name] for name in published} == published


def test_the_readme_lists_every_file() -> None:
    readme = (COMPILE / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)]+)\)", readme))
    files = {path.relative_to(COMPILE) for path in COMPILE.rglob("*") if path.is_file()}
    listed = {str(path) for path in files if path.parts[0] != "trees"} - {"README.md"}
    assert listed <= linked and "trees" in linked
    for link in linked:
        assert (COMPILE / link).exists(), link
    for path in SPECS:
        spec, row = load_spec(path), next(line for line in readme.splitlines() if path.name in line)
        assert spec.neuron and f"{spec.neuron.instance}, {spec.neuron.sdk}" in row


@pytest.mark.parametrize("path", sorted((COMPILE / "trees").glob("*.json")), ids=lambda p: p.stem)
def test_every_tree_is_one(path: Path) -> None:
    import json

    assert Tree.from_paths(json.loads(path.read_text())).num_draft_tokens > 1


# Containers, Kubernetes, EC2


def manifests() -> list[tuple[str, dict[str, Any]]]:
    yaml = import_module("yaml")
    return [
        (path.name, document)
        for path in sorted((COMPILE / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


def containers_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


def check_command(words: list[str]) -> None:
    """A verb with its options, all of which the program has."""
    verb = cli.get_command(click.Context(cli), words[0])
    assert verb is not None, words
    options = {name for parameter in verb.params for name in parameter.opts}
    for word in words[1:]:
        assert not word.startswith("-") or word in options, f"{words[0]} {word}"
    for word in words[1:]:
        if word.endswith(".toml"):
            assert (COMPILE / Path(word).name).is_file(), word


def test_the_manifests_are_of_the_kinds_they_say() -> None:
    assert [document["kind"] for _, document in manifests()] == ["Job", "Deployment", "Service"]


def test_every_container_runs_a_command_that_exists() -> None:
    commands = [c["args"] for _, document in manifests() for c in containers_of(document)]
    assert [words[0] for words in commands] == ["prepare", "compile", "serve"]
    for words in commands:
        check_command([str(word) for word in words])


def test_what_computes_asks_for_chips_and_the_device_is_where_they_are() -> None:
    for name, document in manifests():
        for container in containers_of(document):
            if container["args"][0] == "prepare":
                continue
            assert container["resources"]["limits"] == {"aws.amazon.com/neuron": 1}, name
            selector = document["spec"]["template"]["spec"]["nodeSelector"]
            assert selector == {"node.kubernetes.io/instance-type": "trn2.3xlarge"}


def test_the_artifact_served_is_the_one_compiled() -> None:
    by_verb = {
        c["args"][0]: c["args"] for _, document in manifests() for c in containers_of(document)
    }
    compiled = load_spec(COMPILE / Path(by_verb["compile"][1]).name)
    assert by_verb["serve"][1] == str(compiled.build_directory / "artifact")
    assert compiled.neuron is not None and compiled.neuron.instance == "trn2.3xlarge"


def test_the_container_is_made_from_neurons_images() -> None:
    text = (COMPILE / "Containerfile").read_text()
    tags = re.findall(rf"{IMAGE}:(\S+)", text)
    assert [re.search(r"sdk([\d.]+)-", tag)[1] for tag in tags] == ["2.28.0", "2.29.0"]  # type: ignore[index]
    for source in re.findall(r"^COPY (.+) \S+$", text, flags=re.M):
        assert all((COMPILE.parent / name).exists() for name in source.split())


def test_the_commands_of_shell_scripts_exist() -> None:
    text = (COMPILE / "ec2-user-data.sh").read_text().replace("$SPEC", "llama-3.1-8b-eagle.trn2")
    commands = re.findall(r"^(?:exec )?neuron-spec (.+)$", text, flags=re.M)
    assert [shlex.split(command)[0] for command in commands] == [
        "prepare", "check", "compile", "serve",
    ]  # fmt: skip
    for command in commands:
        check_command(shlex.split(command))
    assert subprocess.run(["bash", "-n", COMPILE / "ec2-user-data.sh"]).returncode == 0
