"""`neuron-spec generate`: continue one prompt on the screen, or many from a JSONL file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.common import err, print_json, progress_bars
from neuron_spec.errors import UserError


@click.command(
    "generate",
    short_help="Continue a prompt, or many from a JSONL file.",
    epilog='Example: neuron-spec generate build/my-spec/artifact "Name three rivers."',
)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option(
    "--prompts", type=click.Path(path_type=Path),
    help='JSONL file of prompts ("prompt", "messages" or "turns" a line) instead of PROMPT.',
)  # fmt: skip
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=0), default=128, show_default=True)
@click.option("--stop", multiple=True, help="String that ends the output; can be given often.")
@click.option(
    "-t", "--temperature", type=float, default=0.0, show_default=True,
    help="0 is greedy; more needs an artifact whose verification rule samples.",
)  # fmt: skip
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Nucleus.")
@click.option("--top-k", type=int, default=0, help="Likeliest tokens that stay.  [default: all]")
@click.option("--seed", type=int, help="Of the random numbers.")
@click.option(
    "--json-schema", type=click.Path(path_type=Path),
    help="JSON Schema that the output is held to.",
)  # fmt: skip
@click.option("--ignore-eos", is_flag=True, help="Go on past the end-of-sequence token.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the chat template.")
@click.option("--no-speculation", is_flag=True, help="Decode with the target alone.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON (one line a prompt with --prompts)."
)
def command(
    artifact: Path,
    prompt: str | None,
    prompts: Path | None,
    raw: bool,
    no_speculation: bool,
    as_json: bool,
    json_schema: Path | None,
    **options: Any,
) -> None:
    """Generate with ARTIFACT: PROMPT (or standard input with "-") is streamed to the screen.

    PROMPT is sent as a user's message through the target's chat template unless --raw is given.
    The acceptance of the draft is told on standard error.
    """
    if (prompt is None) == (prompts is None):
        raise click.UsageError("give either PROMPT or --prompts FILE")
    from neuron_spec.engine import load
    from neuron_spec.engine.tokenizer import Prompt

    session = load(artifact)
    options |= {"speculate": not no_speculation}
    if json_schema is not None:
        options["response_format"] = _response_format(json_schema)
    if prompts is not None:
        _many(session, prompts, options, as_json)
        return
    text = _standard_input() if prompt == "-" else str(prompt)
    message: Prompt = text if raw else [{"role": "user", "content": text}]
    if as_json:
        print_json(session.generate(message, **options).as_dict())
    else:
        _stream(session, message, options)


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UserError("not UTF-8 text", where="standard input", found=error.reason) from None


def _response_format(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError("cannot be read", where=path, found=error.strerror) from None
    except (ValueError, RecursionError) as error:
        raise UserError("not JSON", where=path, found=error) from None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}


def _stream(session: Any, prompt: Any, options: dict[str, Any]) -> None:
    from neuron_spec.engine import FinishEvent

    for num_tokens, event in enumerate(session.stream(prompt, **options)):
        click.echo(event.text, nl=False)
        if isinstance(event, FinishEvent):
            click.echo()
            err().print(f"[dim]{_summary(num_tokens, event)}[/dim]")


def _summary(num_tokens: int, finish: Any) -> str:
    acceptance, timing = finish.acceptance, finish.timing
    parts = [f"{num_tokens} tokens", f"finish: {finish.reason}"]
    if acceptance.num_drafted:
        parts.append(f"acceptance rate {acceptance.rate:.2f}, length {acceptance.length:.2f}")
    if timing.total_s and num_tokens:
        parts.append(f"{num_tokens / timing.total_s:.1f} tokens/s")
    return ", ".join(parts)


def _many(session: Any, path: Path, options: dict[str, Any], as_json: bool) -> None:
    from neuron_spec.bench.workload import read_workload

    rows = read_workload(path)
    size = session.speculator.limits.batch_size
    with progress_bars() as progress:
        for start in range(0, len(rows), size):
            progress("prompts", start, len(rows))
            batch = rows[start : start + size]
            generations = session.generate_many([row.prompt for row in batch], **options)
            for generation in generations:
                click.echo(json.dumps(generation.as_dict()) if as_json else generation.text)
                if not as_json:
                    click.echo("---")
