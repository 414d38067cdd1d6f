"""SageMaker's request against botocore's model of the API, and its training data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.model import OperationModel
from botocore.session import Session
from botocore.validate import ParamValidator

from neuron_spec.errors import SpecError, UserError
from neuron_spec.export.sagemaker import (
    DEFAULT_INSTANCE,
    GPU_INSTANCES,
    PATTERNS,
    SERVICE_DRAFT_RESTRICTIONS,
    TrainingJob,
    for_sagemaker,
    job_name,
    request,
    service_draft,
)
from neuron_spec.export.training_data import TrainingData, check_training_data
from neuron_spec.spec import BuildSpec, load_spec

COMPILE = Path(__file__).parents[2] / "compile"
JOB = TrainingJob("arn:aws:iam::123456789012:role/Trainer", "s3://out/head/", "s3://in/target/")
SPEC = load_spec(COMPILE / "llama-3.1-8b-eagle3.trn2.toml")


@pytest.fixture(scope="module")
def operation() -> OperationModel:
    model = Session().get_service_model("sagemaker")
    return model.operation_model("CreateOptimizationJob")


def report(operation: OperationModel, data: dict[str, Any]) -> str:
    found = ParamValidator().validate(data, operation.input_shape)
    return str(found.generate_report())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training_data": "s3://data/rows.jsonl"},
        {"training_data": "s3://data/manifest", "is_manifest": True},
        {"model": "my-model", "name": "a-job", "instance": "ml.g5.12xlarge", "max_runtime": 60},
    ],
)
def test_botocore_takes_the_request(operation: OperationModel, changes: dict[str, Any]) -> None:
    data = request(SPEC, replace(JOB, **changes))
    assert report(operation, data) == ""
    is_name = changes.get("model") == "my-model"
    s3 = {"S3": {"S3Uri": "s3://in/target/"}}
    assert data["ModelSource"] == ({"SageMakerModel": {"ModelName": "my-model"}} if is_name else s3)
    shapes = operation.input_shape.members
    source = shapes["OptimizationConfigs"].member.members["ModelSpeculativeDecodingConfig"]
    technique = data["OptimizationConfigs"][0]["ModelSpeculativeDecodingConfig"]
    assert technique["Technique"] in source.members["Technique"].enum
    kinds = source.members["TrainingDataSource"].members["S3DataType"].enum
    if "training_data" in changes:
        assert technique["TrainingDataSource"]["S3DataType"] in kinds
        is_manifest = technique["TrainingDataSource"]["S3DataType"] == "ManifestFile"
        assert is_manifest == changes.get("is_manifest", False)
    else:
        assert "TrainingDataSource" not in technique


def test_botocore_would_have_found_a_mistake(operation: OperationModel) -> None:
    assert 'Unknown parameter in input: "Nonsense"' in report(
        operation, {**request(SPEC, JOB), "Nonsense": 1}
    )


def test_our_patterns_and_instances_are_the_apis(operation: OperationModel) -> None:
    members = operation.input_shape.members
    source = members["ModelSource"].members
    shapes = {
        "name": members["OptimizationJobName"],
        "role": members["RoleArn"],
        "uri": members["OutputConfig"].members["S3OutputLocation"],
        "model": source["SageMakerModel"].members["ModelName"],
    }
    # botocore leaves patterns out of a shape's metadata: they stand in the model itself.
    raw = Session().get_component("data_loader").load_service_model("sagemaker", "service-2")
    for key, shape in shapes.items():
        assert raw["shapes"][shape.name]["pattern"] == PATTERNS[key].pattern
    types = members["DeploymentInstanceType"].enum
    assert {name for name in types if name.startswith(("ml.p", "ml.g"))} == set(GPU_INSTANCES)
    assert DEFAULT_INSTANCE in GPU_INSTANCES


@pytest.mark.parametrize("path", sorted(COMPILE.glob("*.toml")), ids=lambda path: path.stem)
def test_every_spec_of_compile(operation: OperationModel, path: Path) -> None:
    spec = load_spec(path)
    if spec.draft.method not in ("none", "eagle", "eagle3"):
        with pytest.raises(SpecError, match="only technique is EAGLE"):
            for_sagemaker(spec, JOB)
        return
    handover = for_sagemaker(spec, JOB)
    assert report(operation, handover.options["--cli-input-json"]) == ""
    assert json.loads(handover.arguments[-1]) == request(spec, JOB)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"role": "Trainer"}, "--role 'Trainer'"),
        ({"output": "/tmp/out"}, "--output '/tmp/out'"),
        ({"output": "https://b/x"}, "--output"),
        ({"training_data": "rows.jsonl"}, "--training-data"),
        ({"model": "meta-llama/Llama-3.1-8B"}, "--model 'meta-llama/Llama-3.1-8B'"),
        ({"model": "m" * 64}, "--model"),
        ({"name": "a_job"}, "--name 'a_job'"),
        ({"instance": "ml.inf2.8xlarge"}, "offered for the GPU types"),
        ({"instance": "ml.trn1.32xlarge"}, "--instance-type"),
        ({"is_manifest": True}, "--manifest: needs --training-data"),
    ],
)
def test_options_that_the_api_would_refuse(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        request(SPEC, replace(JOB, **changes))
    assert says in str(caught.value)


def test_all_faults_come_at_once() -> None:
    with pytest.raises(UserError) as caught:
        request(SPEC, replace(JOB, role="r", output="o", name="-"))
    assert all(option in str(caught.value) for option in ("--role", "--output", "--name"))


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b.trn2", "x" * 80, "ends-in-dots...", "ünï cödé", "a" * 56 + ".b.c"]
)
def test_any_spec_name_makes_a_job_name(name: str) -> None:
    spec = SPEC.model_copy(update={"name": name})
    assert PATTERNS["name"].fullmatch(job_name(spec))
    assert len(job_name(spec)) <= 63


@pytest.mark.parametrize(
    ("architecture", "note"),
    [
        ("LlamaForCausalLM", "for LlamaForCausalLM the job trains EAGLE 3"),
        ("Qwen3NextForCausalLM", "for Qwen3NextForCausalLM the job trains EAGLE 2"),
    ],
)
def test_which_head_comes_back(architecture: str, note: str) -> None:
    assert note in for_sagemaker(SPEC, JOB, architectures=(architecture,)).notes


def test_a_target_that_sagemaker_does_not_know() -> None:
    with pytest.raises(SpecError, match="found MistralForCausalLM"):
        for_sagemaker(SPEC, JOB, architectures=("MistralForCausalLM",))


def test_an_eagle_v1_spec_gets_another_head() -> None:
    spec = load_spec(COMPILE / "llama-3.1-8b-eagle.trn2.toml")
    notes = for_sagemaker(spec, JOB, architectures=("LlamaForCausalLM",)).notes
    assert any("comes back is for 'eagle3'" in note for note in notes)
    assert not any("'eagle3'" in note for note in for_sagemaker(spec, JOB).notes)


def test_losses_and_notes_follow_the_options() -> None:
    tree: BuildSpec = load_spec(COMPILE / "llama-3.1-8b-eagle-tree.trn2.toml")
    fields = [loss.field for loss in for_sagemaker(tree, JOB).losses]
    assert "draft.tree" in fields and "[neuron]" in fields
    assert any(field.startswith("draft.model '") for field in fields)
    data = replace(JOB, training_data="s3://data/rows.jsonl")
    assert any("was not checked" in note for note in for_sagemaker(SPEC, data).notes)
    checked = TrainingData("sharegpt", 7, 2)
    notes = for_sagemaker(SPEC, data, checked=checked).notes
    assert "training data: 7 rows, sharegpt" in notes
    assert "2 of them hold no answer to learn from" in notes
    assert any("its own data sets" in note for note in for_sagemaker(SPEC, JOB).notes)


def test_the_service_draft_comes_with_its_restrictions() -> None:
    arguments = service_draft("meta-textgeneration-llama-3-70b", "ml.p4d.24xlarge")
    assert arguments["ModelBuilder"]["enable_network_isolation"] is True
    config = arguments["optimize"]["speculative_decoding_config"]
    assert config == {"ModelProvider": "SAGEMAKER"}
    assert "accept_eula" not in arguments["optimize"]  # a licence is the user's to accept
    assert arguments["restrictions"] == list(SERVICE_DRAFT_RESTRICTIONS)
    assert "network isolation" in arguments["restrictions"][0]
    with pytest.raises(UserError, match="no GPU type"):
        service_draft("m", "ml.inf2.xlarge")


# Training data

SHAREGPT = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
COMPLETIONS = {"prompt": "a", "completion": "b"}


def write_rows(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.mark.parametrize(
    ("row", "form", "unanswered"),
    [
        (SHAREGPT, "sharegpt", 0),
        ({**SHAREGPT, "id": "x"}, "sharegpt", 0),
        ({"conversations": [{"from": "human", "value": "a"}]}, "sharegpt", 2),
        (CHAT, "openai-chat", 0),
        ({"messages": CHAT["messages"][:1]}, "openai-chat", 2),
        ({"messages": CHAT["messages"][:1], "choices": []}, "openai-chat", 0),
        (COMPLETIONS, "openai-completions", 0),
        ({"prompt": "a"}, "openai-completions", 2),
    ],
)
def test_forms(tmp_path: Path, row: Any, form: str, unanswered: int) -> None:
    data = check_training_data(write_rows(tmp_path / "rows.jsonl", row, b"", row))
    assert data == TrainingData(form, 2, unanswered)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b"{", "line 2: is not JSON"),
        (b"\xff\xfe", "line 2: is not UTF-8"),
        (b"[" * 100_000, "line 2: is nested too deeply"),
        ([1], "line 2: expected an object"),
        ({"text": "a"}, "expected one of the keys conversations, messages, prompt"),
        ({**CHAT, **COMPLETIONS}, "expected one of the keys"),
        ({"messages": []}, "messages: expected a list with turns"),
        ({"messages": "a"}, "messages: expected a list with turns"),
        ({"messages": ["a"]}, "messages[0]: expected an object"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content: expected text"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: expected text, found None"),
        ({"conversations": [{"from": "human", "value": 1}]}, "conversations[0].value"),
        ({"conversations": [{"from": ["x"], "value": "a"}]}, "conversations[0].from"),
        ({"prompt": ["a"]}, "prompt: expected text"),
        ({"prompt": "a", "completion": None}, "completion: expected text"),
    ],
)
def test_rows_that_are_no_training_data(tmp_path: Path, row: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        check_training_data(write_rows(tmp_path / "rows.jsonl", CHAT, row))
    assert says in str(caught.value)


def test_rows_of_two_forms(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", CHAT, CHAT, SHAREGPT)
    with pytest.raises(UserError, match="openai-chat from line 1\n  sharegpt from line 3"):
        check_training_data(path)


def test_only_the_first_faults_are_listed(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        check_training_data(write_rows(tmp_path / "rows.jsonl", *[{}] * 20))
    assert str(caught.value).count("line ") == 5


def test_a_line_without_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuron_spec.export.training_data._MAX_ROW_BYTES", 64)
    path = write_rows(tmp_path / "rows.jsonl", COMPLETIONS, {"prompt": "a" * 64})
    with pytest.raises(UserError, match="line 2 is longer than"):
        check_training_data(path)


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no rows"):
        check_training_data(write_rows(tmp_path / "rows.jsonl", b"", b" "))
    with pytest.raises(UserError, match="cannot be read: No such file"):
        check_training_data(tmp_path / "missing.jsonl")
