"""`neuron-spec compile`: build spec -> artifact."""

from __future__ import annotations

from pathlib import Path

import click

from neuron_spec.backends import BACKENDS
from neuron_spec.cli.common import json_option, print_json, progress_bars, say, spec_argument


@click.command(
    "compile",
    short_help="Build the artifact of a spec.",
    epilog="Example: neuron-spec compile compile/smollm2-135m-eagle.cpu.toml",
)
@spec_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="Folder of the artifact.  [default: build/<spec name>/artifact]",
)  # fmt: skip
@click.option(
    "--prepared", type=click.Path(path_type=Path),
    help="Folder of the prepared draft.  [default: build/<spec name>/draft]",
)  # fmt: skip
@click.option(
    "--backend", type=click.Choice(sorted(BACKENDS)), default="reference", show_default=True,
    help="What the artifact runs on.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Compile anew even if nothing changed.")
@json_option
def command(
    spec_path: Path,
    output: Path | None,
    prepared: Path | None,
    backend: str,
    force: bool,
    as_json: bool,
) -> None:
    """Check SPEC, compile it, and write an artifact that generate, serve and verify open.

    The artifact links to the weights and records their digests; keep them where they are.
    """
    from neuron_spec.checkpoints.prepare import PreparedCheckpoint
    from neuron_spec.compiler import compile_model
    from neuron_spec.preflight.check import locate
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path)
    with progress_bars() as progress:
        inputs = PreparedCheckpoint(locate(spec).target, prepared) if prepared else None
        artifact = compile_model(
            spec, inputs, output, backend=backend, force=force, progress=progress
        )
    if as_json:
        print_json(
            {"artifact": str(artifact.directory), **artifact.manifest.model_dump(mode="json")}
        )
        return
    say(f"artifact: {artifact.directory}")
    say(f"  fingerprint {artifact.manifest.fingerprint[:16]}, made {artifact.manifest.created_at}")
