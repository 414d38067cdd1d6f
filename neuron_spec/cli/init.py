"""`neuron-spec init`: two checkpoints -> a build spec to start from."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_spec.cli.common import json_option, out, plain, print_json, progress_bars, say

if TYPE_CHECKING:
    from neuron_spec.preflight.findings import Finding
    from neuron_spec.proposal import Models, Proposal
    from neuron_spec.spec import BuildSpec

_UNPREPARED = "draft-unprepared"  # no error of the spec: prepare is the next command


@click.command(
    "init",
    short_help="Write a spec for a target and a draft.",
    epilog="Example: neuron-spec init demo:smollm2-135m-instruct "
    "checkpoints/smollm2-135m-instruct-eagle --instance trn2.3xlarge",
)
@click.argument("target")
@click.argument("draft", required=False)
@click.option("--instance", help="EC2 instance type.  [default: none, the reference backend]")
@click.option(
    "--method", type=click.Choice(["ngram", "suffix", "none"]),
    help="How to draft without DRAFT.  [default: ngram]",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
    help="The spec file.  [default: <target>-<method>.<instance>.toml here]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@json_option
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Write a build spec for TARGET and DRAFT: directories, hub ids (downloaded) or demo:NAME.

    The draft method follows from DRAFT's files; lengths, draft length, dtype and TP degree from
    both models and the instance, each with its reason as a comment. Then SPEC is checked: exit
    code 2 if something but the draft's preparation still stops its build.
    """
    from neuron_spec.preflight import check
    from neuron_spec.spec import load_spec

    path, proposal = _write(options)
    spec = load_spec(path)
    findings = check(spec)
    if options["as_json"]:
        print_json(
            {
                "spec": str(path),
                **proposal.data,
                "reasons": proposal.reasons,
                "findings": [finding.as_dict() for finding in findings],
                "next": _next(path, spec, findings),
            }
        )
    else:
        _print(path, spec, proposal, findings)
    context.exit(2 if _errors(spec, findings) else 0)


def _write(options: dict[str, Any]) -> tuple[Path, Proposal]:
    from neuron_spec.files import write_text
    from neuron_spec.proposal import find_instance, propose, read_models, toml_text

    output: Path | None = options["output"]
    # Before anything is downloaded.
    instance = None if options["instance"] is None else find_instance(options["instance"])
    if output is not None:
        _refuse_existing(output, options["force"])
    with progress_bars() as progress:
        models = read_models(
            options["target"],
            options["draft"],
            method=options["method"],
            folder=output.parent if output else Path(),
            progress=progress,
        )
    path = output or Path(_file_name(models, options["instance"]))
    _refuse_existing(path, options["force"])
    proposal = propose(models, instance=instance)
    write_text(path, toml_text(proposal))
    return path, proposal


def _file_name(models: Models, instance: str | None) -> str:
    """The target by the last part of its name, without a hub's revision."""
    named = models.target_name.partition("@")[0]
    name = Path(named.rpartition(":")[2]).name
    if not re.search(r"[A-Za-z0-9]", name):  # as of ".."
        name = models.target.directory.name
    slug = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")
    return f"{slug or 'target'}-{models.method}.{instance or 'cpu'}.toml"


def _refuse_existing(path: Path, force: bool) -> None:
    from neuron_spec.errors import UserError

    if path.exists() and not (force and path.is_file()):
        raise UserError(
            "exists; it is left as it is",
            where=path,
            mend="use --force to replace it, or another --output",
        )


def _errors(spec: BuildSpec, findings: list[Finding]) -> list[Finding]:
    """What stops the build that the spec is for, once its draft is prepared."""
    backend = "neuron" if spec.neuron else "reference"
    return [
        finding
        for finding in findings
        if finding.severity == "error" and finding.concerns(backend) and finding.code != _UNPREPARED
    ]


def _next(path: Path, spec: BuildSpec, findings: list[Finding]) -> list[str]:
    """Commands that lead on; with errors, the one that tells them again."""
    import shlex

    file = shlex.quote(str(path))
    if _errors(spec, findings):
        return [f"neuron-spec check {file}"]
    prepare = [f"neuron-spec prepare {file}"] * any(f.code == _UNPREPARED for f in findings)
    backend = " --backend neuron" if spec.neuron else ""
    return [*prepare, f"neuron-spec compile {file}{backend}"]


def _print(path: Path, spec: BuildSpec, proposal: Proposal, findings: list[Finding]) -> None:
    console = out()
    console.print(f"[bold green]wrote[/] {plain(str(path))}: {plain(proposal.title)}")
    for table, fields in proposal.tables.items():
        for name, value in fields.items():
            why = f"  [dim]# {plain(value.reason)}[/]" if value.reason else ""
            console.print(f"  {table}.{name} = {plain(repr(value.value))}{why}")
    errors = _errors(spec, findings)
    for finding in findings:
        if finding in errors:
            console.print(f"[bold red]error[/] {finding.code}: {plain(finding.message)}")
            console.print(f"  mend: {plain(finding.remedy)}")
        elif finding.severity == "warning":
            console.print(f"[bold yellow]warning[/] {finding.code}: {plain(finding.message)}")
    counts = Counter(f.severity for f in findings if f.severity != "error")
    told = [f"{len(errors)} error(s)", f"{counts['warning']} warning(s)", f"{counts['info']} info"]
    say(f"preflight: {', '.join(told)}; neuron-spec check tells all of them")
    for line in _next(path, spec, findings):
        console.print(f"next: [bold]{plain(line)}[/]")
