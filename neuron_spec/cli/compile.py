"""`neuron-spec compile`: build spec -> artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_spec.backends import BACKENDS
from neuron_spec.cli.common import (
    err,
    json_option,
    out,
    plain,
    print_config,
    print_json,
    progress_bars,
    say,
    spec_argument,
)
from neuron_spec.errors import PreflightError

if TYPE_CHECKING:
    from neuron_spec.backends.builds import BuildPreview
    from neuron_spec.compiler import Cache
    from neuron_spec.spec import BuildSpec


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
@click.option(
    "--dry-run", is_flag=True,
    help="Say what would be done and change nothing; needs no Neuron packages.",
)  # fmt: skip
@json_option
def command(
    spec_path: Path,
    output: Path | None,
    prepared: Path | None,
    backend: str,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Check SPEC, compile it, and write an artifact that generate, serve and verify open.

    The artifact links to the weights and records their digests; keep them where they are. An
    artifact that is there already is kept if nothing changed.
    """
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path)
    if dry_run:
        _preview(spec, output, prepared, backend=backend, force=force, as_json=as_json)
        return
    from neuron_spec.backends import get_backend
    from neuron_spec.compiler import plan_compile, run_plan

    engine = get_backend(backend)
    engine.require()
    with progress_bars() as progress:
        inputs = _inputs(spec, prepared)
        plan = plan_compile(spec, inputs, output, backend=backend, force=force, progress=progress)
        if not plan.cache.hit:
            _announce(plan.cache, engine.preview(spec, plan.destination))
        artifact = run_plan(plan, progress)
    if as_json:
        manifest = artifact.manifest.model_dump(mode="json")
        cache = vars(plan.cache)
        print_json({"artifact": str(artifact.directory), "cache": cache, **manifest})
        return
    say(f"artifact: {artifact.directory}" + _kept(plan.cache))
    say(f"  fingerprint {artifact.manifest.fingerprint[:16]}, made {artifact.manifest.created_at}")


def _inputs(spec: BuildSpec, prepared: Path | None) -> Any:
    from neuron_spec.checkpoints.prepare import PreparedCheckpoint
    from neuron_spec.preflight.check import locate

    return PreparedCheckpoint(locate(spec).target, prepared) if prepared else None


def _kept(cache: Cache) -> str:
    return f" (kept: {cache.reason})" if cache.hit else ""


def _announce(cache: Cache, preview: BuildPreview) -> None:
    """On standard error, before it takes its time: why, and where to look meanwhile."""
    console = err()
    console.print(f"compiling: {plain(cache.reason)}")
    if "log" in preview.beside:
        console.print(f"  log: {plain(preview.beside['log'])}")


def _preview(
    spec: BuildSpec,
    output: Path | None,
    prepared: Path | None,
    *,
    backend: str,
    force: bool,
    as_json: bool,
) -> None:
    from neuron_spec.backends import get_backend
    from neuron_spec.compiler import artifact_folder, missing_models, plan_compile

    destination = artifact_folder(spec, output)
    preview = get_backend(backend).preview(spec, destination)
    missing, cache = missing_models(spec), None
    errors: PreflightError | None = None
    if not missing:
        try:
            inputs = _inputs(spec, prepared)
            cache = plan_compile(spec, inputs, output, backend=backend, force=force).cache
        except PreflightError as error:  # told at the end: the rest is of use all the same
            errors = error
    data: dict[str, Any] = {
        "artifact": str(destination),
        "backend": backend,
        "cache": vars(cache) if cache else None,
        "missing_models": missing,
        **vars(preview),
        "nxdi_config": _nxdi_config(spec).as_dict() if backend == "neuron" else None,
    }
    if as_json:
        print_json(data)
    else:
        _print_preview(spec, data)
    if errors is not None:
        raise errors


def _nxdi_config(spec: BuildSpec) -> Any:
    from neuron_spec.backends.neuron.config import render
    from neuron_spec.backends.neuron.reading import facts_here

    return render(spec, facts_here(spec))


def _print_preview(spec: BuildSpec, data: dict[str, Any]) -> None:
    console, cache = out(), data["cache"]
    say(f"artifact: {data['artifact']} ({data['backend']} backend)")
    if missing := data["missing_models"]:
        models = ", ".join(f"{role} {model}" for role, model in missing.items())
        say(f"  not checked, and not compared with what is there, since not here: {models}")
    elif cache is not None:
        say(f"  {'would be kept' if cache['hit'] else 'would be compiled'}: {cache['reason']}")
    console.print("[bold]phases[/]")
    for number, phase in enumerate(data["phases"], 1):
        say(f"  {number}. {phase}")
    for title in ("graphs", "environment", "beside"):
        if data[title]:
            console.print(f"[bold]{title}[/]")
        for name, value in data[title].items():
            shown = ", ".join(map(str, value)) if isinstance(value, tuple) else value
            say(f"  {name}: {shown}" if title != "environment" else f"  {name}={shown}")
    if data["backend"] == "neuron":
        print_config(_nxdi_config(spec))
