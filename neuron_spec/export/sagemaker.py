"""Build spec -> the request with which Amazon SageMaker AI trains an EAGLE head for its target.

Sources: botocore's model of the API (sagemaker/2017-07-24, CreateOptimizationJob; botocore checks
lengths and required members, but no pattern and no list of values, so that those are checked here);
AWS Machine Learning Blog, 2025-11-25, "Amazon SageMaker AI introduces EAGLE based adaptive
speculative decoding" (architectures, model source, an existing head, service data); SageMaker
Developer Guide, model-optimize-create-job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neuron_spec.errors import UserError
from neuron_spec.export.handover import Handover, Loss, refuse
from neuron_spec.export.training_data import TrainingData
from neuron_spec.spec.schema import BuildSpec

PATTERNS = {
    "name": re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"),
    "role": re.compile(r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+"),
    "uri": re.compile(r"(https|s3)://([^/]+)/?(.*)"),
    "model": re.compile(r"[a-zA-Z0-9]([\-a-zA-Z0-9]*[a-zA-Z0-9])?"),
}
DEFAULT_INSTANCE = "ml.p5.48xlarge"  # the blog's
DEFAULT_MAX_RUNTIME = 432_000  # seconds; the blog's
MAX_NAME = 63
_SIZES = {
    "p4d p4de": "24",
    "p5 p5e p5en p6-b200": "48",
    "g4dn": "1 2 4 8 12 16",
    "g5 g6 g6e": "1 2 4 8 12 16 24 48",
    "g7 g7e": "2 4 8 12 24 48",
}
GPU_INSTANCES = tuple(
    f"ml.{family}.{size if size != '1' else ''}xlarge"
    for families, sizes in _SIZES.items()
    for family in families.split()
    for size in sizes.split()
)
HEADS = {
    "LlamaForCausalLM": "EAGLE 3",
    "Qwen2ForCausalLM": "EAGLE 3",
    "Qwen3ForCausalLM": "EAGLE 3",
    "Qwen3MoeForCausalLM": "EAGLE 3",
    "GptOssForCausalLM": "EAGLE 3",
    "Qwen3NextForCausalLM": "EAGLE 2",
}
_METHODS = ("none", "eagle", "eagle3")
SERVICE_DRAFT_RESTRICTIONS = (
    "network isolation must be on for the model (Developer Guide, model-optimize-create-job); "
    "sharded fast loading, which needs the network, is then excluded (SageMaker Python SDK)",
    "only JumpStart models for which SageMaker has a draft; for others the SDK says 'No "
    "`Sagemaker` provided draft model was found'",
    "GPU instances only: for Inferentia and Trainium the service offers compilation alone",
    "it is a draft model inside SageMaker's container (OPTION_SPECULATIVE_DRAFT_MODEL), not an "
    "EAGLE head: there is no CreateOptimizationJob, nothing to train, and no training data",
    "its files are the service's: `prepare`, `verify` and a Neuron build need a draft of your own",
    "a model with a licence needs accept_eula=True in optimize and deploy, which is yours to say",
)


@dataclass(frozen=True)
class TrainingJob:
    """What the spec does not say.

    Attributes:
        role: ARN of the role that SageMaker takes.
        output: S3 URI for the result.
        model: S3 URI of the target's files, or the name of a SageMaker model.
        name: of the job; None: made of the spec's.
        training_data: S3 URI of the JSONL; None: the service's own data sets.
        is_manifest: whether that URI is of a manifest instead of a prefix.
        instance: the type that will serve the model.
        max_runtime: seconds.
    """

    role: str
    output: str
    model: str
    name: str | None = None
    training_data: str | None = None
    is_manifest: bool = False
    instance: str = DEFAULT_INSTANCE
    max_runtime: int = DEFAULT_MAX_RUNTIME


def for_sagemaker(
    spec: BuildSpec,
    job: TrainingJob,
    *,
    architectures: tuple[str, ...] = (),
    checked: TrainingData | None = None,
) -> Handover:
    """The AWS command that starts the job.

    Args:
        architectures: of the target's config.json; empty if it is not here.
        checked: what is known of the training data's local copy.

    Raises:
        SpecError: a method that the service does not train, or a target that it does not know.
        UserError: an option that the API would refuse; all of them in one error.
    """
    _check_spec(spec, architectures)
    return Handover(
        "Amazon SageMaker AI, CreateOptimizationJob (API 2017-07-24)",
        ("aws", "sagemaker", "create-optimization-job"),
        {"--cli-input-json": request(spec, job)},
        losses=tuple(_losses(spec)),
        notes=tuple(_notes(spec, job, architectures, checked)),
    )


def request(spec: BuildSpec, job: TrainingJob) -> dict[str, Any]:
    """The request's members, as boto3's create_optimization_job(**request) takes them.

    Raises:
        UserError: an option that the API would refuse; all of them in one error.
    """
    name = job.name or job_name(spec)
    faults = list(_faults(job, name))
    if faults:
        raise UserError("\n  ".join(["SageMaker would refuse", *faults]), where=spec.name)
    is_uri = PATTERNS["uri"].fullmatch(job.model) is not None
    source = (
        {"S3": {"S3Uri": job.model}} if is_uri else {"SageMakerModel": {"ModelName": job.model}}
    )
    return {
        "OptimizationJobName": name,
        "RoleArn": job.role,
        "ModelSource": source,
        "DeploymentInstanceType": job.instance,
        "OptimizationConfigs": [{"ModelSpeculativeDecodingConfig": _technique(job)}],
        "OutputConfig": {"S3OutputLocation": job.output},
        "StoppingCondition": {"MaxRuntimeInSeconds": job.max_runtime},
    }


def job_name(spec: BuildSpec) -> str:
    """The spec's name as a job's: letters, digits and single hyphens, at most 63."""
    name = re.sub(r"[^a-zA-Z0-9]+", "-", f"eagle-{spec.name}").strip("-")
    return name[:MAX_NAME].rstrip("-")


def _technique(job: TrainingJob) -> dict[str, Any]:
    if job.training_data is None:
        return {"Technique": "EAGLE"}
    kind = "ManifestFile" if job.is_manifest else "S3Prefix"
    source = {"S3Uri": job.training_data, "S3DataType": kind}
    return {"Technique": "EAGLE", "TrainingDataSource": source}


def _faults(job: TrainingJob, name: str) -> Iterator[str]:
    if not PATTERNS["name"].fullmatch(name):
        yield f"--name '{name}': expected at most 63 letters, digits and hyphens"
    if not PATTERNS["role"].fullmatch(job.role):
        yield f"--role '{job.role}': expected arn:aws:iam::<12 digits>:role/<name>"
    for option, uri in (("--output", job.output), ("--training-data", job.training_data)):
        if uri is not None and not uri.startswith("s3://"):
            yield f"{option} '{uri}': expected s3://bucket/prefix"
    names_a_model = PATTERNS["model"].fullmatch(job.model) and len(job.model) <= MAX_NAME
    if not (job.model.startswith("s3://") or names_a_model):
        yield f"--model '{job.model}': expected s3://bucket/prefix, or a SageMaker model's name"
    if job.instance not in GPU_INSTANCES:
        yield (
            f"--instance-type '{job.instance}': speculative decoding is offered for the GPU types "
            f"of the API: {', '.join(GPU_INSTANCES)}"
        )
    if job.is_manifest and job.training_data is None:
        yield "--manifest: needs --training-data"


def _check_spec(spec: BuildSpec, architectures: tuple[str, ...]) -> None:
    method = spec.draft.method
    if method not in _METHODS:
        raise refuse(
            spec,
            f"draft.method '{method}': the API's only technique is EAGLE",
            f"use a spec with one of {', '.join(_METHODS)}",
        )
    if architectures and not set(architectures) & set(HEADS):
        raise refuse(
            spec,
            f"target: SageMaker trains heads for {', '.join(HEADS)} (found "
            f"{', '.join(architectures)})",
            "train the head elsewhere",
        )


def _losses(spec: BuildSpec) -> Iterator[Loss]:
    yield Loss(
        "draft.num_draft_tokens, verification, shape",
        "the API takes a technique and data; these belong to the endpoint, or to your Neuron build",
    )
    if spec.draft.tree or spec.draft.dynamic_tree:
        yield Loss("draft.tree", "the shape of the drafts is SageMaker's own")
    if spec.draft.model is not None:
        yield Loss(
            f"draft.model '{spec.draft.model}'",
            "training starts anew; to go on from this head, make a SageMaker model that has it as "
            "AdditionalModelDataSources with ChannelName eagle_model, and name it with --model",
        )
    if spec.neuron is not None:
        yield Loss("[neuron]", "heads are trained and served on GPUs; bring the head back for it")


def _notes(
    spec: BuildSpec,
    job: TrainingJob,
    architectures: tuple[str, ...],
    checked: TrainingData | None,
) -> Iterator[str]:
    yield (
        f"the target is read from --model: upload {spec.target.model} there, hub ids are not taken"
    )
    known = [HEADS[name] for name in architectures if name in HEADS]
    if known:
        yield f"for {architectures[0]} the job trains {known[0]}"
    else:
        yield f"the target's config.json is not here; heads are trained for {', '.join(HEADS)}"
    if known == ["EAGLE 3"] and spec.draft.method == "eagle":
        yield "the spec says draft.method 'eagle': the head that comes back is for 'eagle3'"
    if job.training_data is None:
        yield "no --training-data: the service trains on its own data sets, not on your traffic"
    elif checked is None:
        yield "the training data was not checked: give its local copy with --training-file"
    else:
        yield f"training data: {checked.num_rows} rows, {checked.form}"
        if checked.num_unanswered:
            yield f"{checked.num_unanswered} of them hold no answer to learn from"
    yield "captured endpoint data must be unencrypted"
    yield "then: `neuron-spec inspect` on the head in the output tells what Neuron still needs"


def service_draft(model_id: str, instance: str) -> dict[str, Any]:
    """Arguments of the SageMaker Python SDK for the draft model that the service provides.

    Args:
        model_id: a JumpStart model's id.

    Raises:
        UserError: no GPU instance.
    """
    if instance not in GPU_INSTANCES:
        raise UserError(
            f"'{instance}' is no GPU type of the API", where="--instance-type",
            expected=", ".join(GPU_INSTANCES),
        )  # fmt: skip
    return {
        "ModelBuilder": {"model": model_id, "enable_network_isolation": True},
        "optimize": {
            "instance_type": instance,
            "speculative_decoding_config": {"ModelProvider": "SAGEMAKER"},
        },
        "restrictions": list(SERVICE_DRAFT_RESTRICTIONS),
    }
