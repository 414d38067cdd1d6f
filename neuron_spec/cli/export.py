"""`neuron-spec export`: the spec as another system's command, with what it cannot carry over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_spec.cli.common import json_option, out, plain, print_json, say, spec_argument

if TYPE_CHECKING:
    from neuron_spec.export.handover import Handover, Model, Models
    from neuron_spec.export.training_data import TrainingData
    from neuron_spec.spec import BuildSpec

_ARTIFACT_HELP = "Folder of the compiled model, filled by the first start."
_NXDI_ARTIFACT_HELP = (
    "Folder of the compiled model: `target` in an artifact of `compile --backend neuron`, or one "
    "that the first start fills."
)


@click.group(
    "export",
    short_help="Print a spec as vLLM's command or SageMaker's request.",
    epilog="Example: neuron-spec export vllm compile/llama-3.1-8b-eagle3.trn2.toml",
)
def command() -> None:
    """Print the command of another system for the same build, and what it cannot carry over.

    Nothing is run and nothing is downloaded. Exit code 2 if nothing sensible would be left.
    """


@command.command(
    "vllm",
    short_help="Plain vLLM on GPUs.",
    epilog="Example: neuron-spec export vllm compile/llama-3.1-8b-eagle3.trn2.toml",
)
@spec_argument
@click.option(
    "--tensor-parallel", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs."
)
@json_option
def vllm(spec_path: Path, tensor_parallel: int, as_json: bool) -> None:
    """Plain vLLM on GPUs."""
    from neuron_spec.export.vllm import for_vllm
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path)
    _show(for_vllm(spec, _models(spec), tensor_parallel=tensor_parallel), as_json)


@command.command(
    "vllm-nxdi",
    short_help="vLLM over NxD Inference.",
    epilog="Example: neuron-spec export vllm-nxdi compile/llama-3.1-8b-eagle.trn2.toml",
)
@spec_argument
@click.option("--artifact", help=f"{_NXDI_ARTIFACT_HELP}  [default: build/<spec>/vllm-nxdi]")
@json_option
def vllm_nxdi(spec_path: Path, artifact: str | None, as_json: bool) -> None:
    """vLLM over NxD Inference (vllm-neuron up to 0.5)."""
    from neuron_spec.backends.neuron.reading import facts_here
    from neuron_spec.export.vllm_nxdi import for_vllm_nxdi
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path)
    folder = _folder(artifact, spec, "vllm-nxdi")
    _show(for_vllm_nxdi(spec, _models(spec), folder, facts=facts_here(spec)), as_json)


@command.command(
    "vllm-neuron",
    short_help="The vLLM Neuron plugin, without NxD Inference.",
    epilog="Example: neuron-spec export vllm-neuron compile/llama-3.1-8b-eagle3.trn2.toml",
)
@spec_argument
@click.option("--artifact", help=f"{_ARTIFACT_HELP}  [default: build/<spec>/vllm-neuron]")
@json_option
def vllm_neuron(spec_path: Path, artifact: str | None, as_json: bool) -> None:
    """The vLLM Neuron plugin without NxD Inference (SDK 2.31 and newer)."""
    from neuron_spec.export.vllm_neuron import for_vllm_neuron
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path)
    folder = _folder(artifact, spec, "vllm-neuron")
    _show(for_vllm_neuron(spec, _models(spec), folder), as_json)


@command.command(
    "sagemaker",
    short_help="SageMaker's request for training an EAGLE head.",
    epilog="Example: neuron-spec export sagemaker SPEC --role arn:aws:iam::123456789012:role/r "
    "--model s3://b/target/ --output s3://b/head/",
)
@spec_argument
@click.option("--role", help="ARN of the role that SageMaker takes.")
@click.option("--model", help="S3 URI of the target's files, or a SageMaker model's name.")
@click.option("--output", help="S3 URI for the result.")
@click.option("--training-data", help="S3 URI of the JSONL.  [default: the service's own data]")
@click.option("--manifest", is_flag=True, help="That URI is of a manifest, not of a prefix.")
@click.option(
    "--training-file", type=click.Path(path_type=Path), help="Its local copy, to be checked."
)
@click.option("--name", help="Of the job.  [default: eagle-<spec>]")
@click.option("--instance-type", default="ml.p5.48xlarge", show_default=True)
@click.option(
    "--max-runtime", type=click.IntRange(min=1), default=432_000, show_default=True, help="Seconds."
)
@click.option(
    "--service-draft", metavar="JUMPSTART_ID",
    help="Instead of training: the draft that SageMaker provides for that model, its restrictions.",
)  # fmt: skip
@json_option
def sagemaker(spec_path: Path, as_json: bool, **options: Any) -> None:
    """SageMaker's request for training an EAGLE head (CreateOptimizationJob)."""
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path)
    if options["service_draft"]:
        _show_service_draft(options["service_draft"], options["instance_type"], as_json)
        return
    missing = [f"--{name}" for name in ("role", "model", "output") if not options[name]]
    if missing:
        raise click.UsageError(f"needs {', '.join(missing)}")
    _show(_training(spec, options), as_json)


def _training(spec: BuildSpec, options: dict[str, Any]) -> Handover:
    from neuron_spec.export.sagemaker import TrainingJob, for_sagemaker

    job = TrainingJob(
        options["role"],
        options["output"],
        options["model"],
        name=options["name"],
        training_data=options["training_data"],
        is_manifest=options["manifest"],
        instance=options["instance_type"],
        max_runtime=options["max_runtime"],
    )
    checked = _checked(options["training_file"])
    return for_sagemaker(spec, job, architectures=_architectures(spec), checked=checked)


def _checked(path: Path | None) -> TrainingData | None:
    from neuron_spec.export.training_data import check_training_data

    return None if path is None else check_training_data(path)


def _architectures(spec: BuildSpec) -> tuple[str, ...]:
    from neuron_spec.checkpoints.model_config import read_raw_config
    from neuron_spec.checkpoints.source import find_model

    directory = find_model(spec.target.model, spec.base_directory)
    found = None if directory is None else read_raw_config(directory).get("architectures")
    return tuple(str(name) for name in found) if isinstance(found, list) else ()


def _folder(given: str | None, spec: BuildSpec, system: str) -> str:
    return str(Path(given or spec.build_directory / system).absolute())


def _models(spec: BuildSpec) -> Models:
    from neuron_spec.export.handover import Models

    draft = spec.draft.model
    return Models(_model(spec.target.model, spec), None if draft is None else _model(draft, spec))


def _model(name: str, spec: BuildSpec) -> Model:
    """As another program finds it: a path from the root, or a hub id with its revision apart."""
    from neuron_spec.checkpoints.source import find_model, is_hub_id
    from neuron_spec.errors import CheckpointError
    from neuron_spec.export.handover import Model

    path = spec.base_directory / Path(name).expanduser()
    if path.is_dir():
        return Model(str(path.resolve()))
    if is_hub_id(name):
        repository, _, revision = name.partition("@")
        return Model(repository, revision or None)
    directory = find_model(name, spec.base_directory)
    if directory is None:
        raise CheckpointError(
            "is not on this machine, and no hub has it",
            where=name,
            mend="run `neuron-spec prepare` first, or correct the path",
        )
    return Model(str(directory))


def _show(handover: Handover, as_json: bool) -> None:
    if as_json:
        print_json(handover.as_dict())
        return
    console = out()
    console.print(f"[bold]{plain(handover.system)}[/]")
    say("")
    say(handover.shell)
    say("")
    for loss in handover.losses:
        console.print(f"[bold yellow]lost[/] {plain(loss.field)}: {plain(loss.reason)}")
    if not handover.losses:
        console.print("[bold green]nothing of the spec is lost[/]")
    for note in handover.notes:
        console.print(f"[cyan]note[/] {plain(note)}")


def _show_service_draft(model_id: str, instance: str, as_json: bool) -> None:
    from neuron_spec.export.sagemaker import service_draft

    arguments = service_draft(model_id, instance)
    if as_json:
        print_json(arguments)
        return
    for name in ("ModelBuilder", "optimize"):
        say(f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments[name].items())})")
    for restriction in arguments["restrictions"]:
        out().print(f"[bold yellow]restriction[/] {plain(restriction)}")
