"""`neuron-spec`: the verbs, each in its own file and imported when used.

Only here do errors become exit codes: 2 for input that can be mended, 1 for a result that says no
or a failure, 130 for Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

import click

from neuron_spec.errors import NeuronSpecError, nearest
from neuron_spec.version import __version__

VERBS = (
    "bench",
    "check",
    "compare",
    "compile",
    "demo",
    "doctor",
    "export",
    "generate",
    "init",
    "inspect",
    "methods",
    "plan",
    "prepare",
    "serve",
    "verify",
)


class VerbGroup(click.Group):
    """Finds verbs in `neuron_spec.cli.<verb>`, so that one verb's imports do not slow another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, sorted."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"neuron_spec.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, but a misspelt verb is told the nearest one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"no verb '{args[0]}': {nearest(args[0], VERBS)}")
        return super().resolve_command(ctx, args)


@click.command(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: neuron-spec demo",
)
@click.version_option(__version__, prog_name="neuron-spec")
def cli() -> None:
    """Speculative decoding for AWS Trainium and Inferentia, testable on any machine.

    One build spec (TOML) goes through prepare, check, compile; the artifact is used by generate,
    serve, verify and bench.
    """


def main() -> None:
    """Console entry point."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        exit_code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        exit_code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; nothing was left half-written", err=True)
        exit_code = 130
    except NeuronSpecError as error:
        click.echo(f"error: {error}", err=True)
        exit_code = error.exit_code
    except OSError as error:  # as a full disk behind standard output, or the end of a pipe
        exit_code = _give_up(error)
    sys.exit(exit_code if isinstance(exit_code, int) else 0)


def _give_up(error: OSError) -> int:
    """Say what the operating system refused; a reader who has left (`| head`) is told nothing."""
    if not isinstance(error, BrokenPipeError):
        click.echo(f"error: {error}", err=True)
    # What standard output still holds would fail again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _terminate(signal_number: int, frame: Any) -> None:
    """SIGTERM unwinds like an exception, so that half-written folders are removed."""
    raise SystemExit(128 + signal_number)
