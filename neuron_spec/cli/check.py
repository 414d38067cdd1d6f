"""`neuron-spec check`: what would fail later, found now; and what the rule guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.common import (
    json_option,
    out,
    plain,
    print_config,
    print_findings,
    print_json,
    spec_argument,
)


@click.command(
    "check",
    short_help="Find every error before compiling; say what the rule guarantees.",
    epilog="Example: neuron-spec check compile/smollm2-135m-eagle.cpu.toml",
)
@spec_argument
@click.option(
    "--show-config", is_flag=True,
    help="Print what NxD Inference is configured with instead, and why; needs no checkpoint.",
)  # fmt: skip
@json_option
@click.pass_context
def command(context: click.Context, spec_path: Path, show_config: bool, as_json: bool) -> None:
    """Find every error of SPEC before compiling, and say which guarantee its rule gives.

    Findings that concern one backend's builds name it. Exit code 2 if there are errors that stop
    the build the spec is for: for Neuron where it has a [neuron] table, for the reference backend
    where not.
    """
    if show_config:
        _show_config(spec_path, as_json)
        return
    from neuron_spec.platforms.neuron_packages import neuron_packages
    from neuron_spec.preflight import check
    from neuron_spec.spec import claims_of, load_spec

    spec = load_spec(spec_path)
    findings, claims, packages = check(spec), claims_of(spec.verification), neuron_packages()
    backend = "neuron" if spec.neuron else "reference"
    has_errors = any(f.severity == "error" and f.concerns(backend) for f in findings)
    if as_json:
        print_json(
            {
                "findings": [finding.as_dict() for finding in findings],
                "rule": spec.verification.rule,
                "claims": [vars(claim) for claim in claims],
                "neuron_packages": [vars(package) for package in packages],
            }
        )
    else:
        _print(spec, findings, claims, packages)
    context.exit(2 if has_errors else 0)


def _print(spec: Any, findings: Any, claims: Any, packages: Any) -> None:
    from neuron_spec.spec.guarantees import NUMERICS

    console = out()
    print_findings(findings)
    if not findings:
        console.print("[bold green]no findings[/]: this spec can be compiled")
    console.print(f"verification rule '{spec.verification.rule}':")
    for claim in claims:
        console.print(f"  {claim.level}: {claim.status} ({plain(claim.source)})")
    console.print(f"  {plain(NUMERICS)}")
    console.print("Neuron packages: " + ", ".join(str(package) for package in packages))


def _show_config(spec_path: Path, as_json: bool) -> None:
    from neuron_spec.backends.neuron.config import render
    from neuron_spec.backends.neuron.reading import facts_here
    from neuron_spec.spec import load_spec

    spec = load_spec(spec_path)
    config = render(spec, facts_here(spec))
    if as_json:
        print_json(config.as_dict())
        return
    print_config(config)
