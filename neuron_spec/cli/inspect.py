"""`neuron-spec inspect`: what a checkpoint or an artifact is, from headers alone."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from neuron_spec.cli.common import json_option, out, print_json, progress_bars


@click.command(
    "inspect",
    short_help="Say what a checkpoint or an artifact is.",
    epilog="Example: neuron-spec inspect checkpoints/smollm2-135m-instruct-eagle",
)
@click.argument("model")
@json_option
def command(model: str, as_json: bool) -> None:
    """Say what MODEL is: a checkpoint directory, a hub id, demo:NAME, or an artifact.

    For a checkpoint: its family, sizes, what it lacks, and what prepare would do. For an artifact:
    what was built, from what, and what its verification rule guarantees.
    """
    if (Path(model) / "manifest.json").is_file():
        _inspect_artifact(Path(model), as_json)
    else:
        _inspect_checkpoint(model, as_json)


def _inspect_checkpoint(model: str, as_json: bool) -> None:
    from neuron_spec.checkpoints.identify import identify
    from neuron_spec.checkpoints.source import resolve_model

    with progress_bars() as progress:
        directory = resolve_model(model, Path.cwd(), progress=progress)
    identity = identify(directory)
    if as_json:
        print_json(identity.as_dict())
        return
    config = identity.config
    dtypes = ", ".join(f"{count} x {dtype}" for dtype, count in identity.dtypes.items())
    console = out()
    rows = {
        "checkpoint": str(directory),
        "family": f"{identity.family} ({config.model_type})",
        "size": f"{identity.num_parameters:,} parameters, {len(identity.files.tensors)} tensors "
        f"({dtypes}) in {len(identity.files.files)} file(s)",
        "shape": f"hidden {config.hidden_size}, {config.num_hidden_layers} layer(s), "
        f"{config.num_attention_heads} heads, {config.num_key_value_heads} kv heads, "
        f"vocabulary {config.vocab_size}",
    }
    for name, value in rows.items():
        console.print(f"[bold]{name:>11}[/bold]  {escape(value)}")
    for kind in ("missing", "unexpected", "misshapen"):
        for sentence in getattr(identity, kind):
            console.print(f"[bold red]{kind:>11}[/bold red]  {escape(sentence)}")
    for step in identity.preparation:
        console.print(f"[bold yellow]{'to prepare':>11}[/bold yellow]  {escape(step)}")
    if identity.is_prepared and not identity.misshapen:
        console.print(f"[bold green]{'ready':>11}[/bold green]  can be loaded as it is")


def _inspect_artifact(directory: Path, as_json: bool) -> None:
    from neuron_spec.artifacts import open_artifact

    manifest = open_artifact(directory).manifest
    if as_json:
        print_json(manifest.model_dump(mode="json"))
        return
    draft = manifest.spec["draft"]
    speculation = (
        f"{draft['method']}, k = {manifest.num_draft_tokens}" if manifest.speculation else "off"
    )
    libraries = ", ".join(f"{name} {version}" for name, version in manifest.libraries.items())
    rows = {
        "artifact": str(directory),
        "backend": f"{manifest.backend} ({libraries})",
        "created": f"{manifest.created_at} by neuron-spec {manifest.neuron_spec_version}",
        "speculation": speculation,
        "rule": manifest.spec["verification"]["rule"],
        **{role: model.directory for role, model in manifest.models.items()},
        "fingerprint": manifest.fingerprint,
    }
    console = out()
    for name, value in rows.items():
        console.print(f"[bold]{name:>11}[/bold]  {escape(value)}")
    for claim in manifest.claims:
        console.print(f"[bold]{'claim':>11}[/bold]  {claim.level}: {claim.status}")
    console.print(f"[bold]{'':>11}[/bold]  {escape(manifest.numerics)}")
