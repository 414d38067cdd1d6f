"""`neuron-spec prepare`: published draft -> what NxDI and the reference backend load."""

from __future__ import annotations

from pathlib import Path

import click

from neuron_spec.cli.common import json_option, print_json, progress_bars, say, spec_argument


@click.command(
    "prepare",
    short_help="Complete a published draft for its target.",
    epilog="Example: neuron-spec prepare compile/smollm2-135m-eagle.cpu.toml",
)
@spec_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="Folder of the prepared draft.  [default: build/<spec name>/draft]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Write anew even if nothing changed.")
@json_option
def command(spec_path: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Complete the draft of SPEC for its target: copy the LM head, write the deciding flags.

    The published checkpoint is not touched. The output appears whole or not at all.
    """
    from neuron_spec.checkpoints.prepare import prepare
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path)
    with progress_bars() as progress:
        prepared = prepare(spec, output, force=force, progress=progress)
    if as_json:
        print_json(
            {
                "target": str(prepared.target),
                "draft": str(prepared.draft) if prepared.draft else None,
                "decisions": list(prepared.decisions),
                "is_new": prepared.is_new,
            }
        )
        return
    if prepared.draft is None:
        say(f"nothing to prepare: draft.method is '{spec.draft.method}'")
        return
    if spec.draft.method == "model":
        say(f"nothing to prepare: a language model is loaded as it is, from {prepared.draft}")
    else:
        say(f"{'prepared' if prepared.is_new else 'unchanged, nothing to do'}: {prepared.draft}")
    for decision in prepared.decisions:
        say(f"  {decision}")
