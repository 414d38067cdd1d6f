"""`neuron-spec serve`: an artifact behind OpenAI's protocol."""

from __future__ import annotations

from pathlib import Path

import click

from neuron_spec.cli.common import say

_DRAIN_LIMIT_S = 30  # what runs may finish after a signal, but not hold the server up for ever


@click.command(
    "serve",
    short_help="Serve an artifact over OpenAI's protocol.",
    epilog="Example: neuron-spec serve build/smollm2-135m-eagle.cpu/artifact --port 8000",
)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--model-name", help="Name in /v1/models.  [default: the spec's name]")
@click.option("--no-speculation", is_flag=True, help="Decode with the target alone.")
def command(
    artifact: Path, host: str, port: int, model_name: str | None, no_speculation: bool
) -> None:
    """Serve ARTIFACT: /v1/completions, /v1/chat/completions, /v1/models, /health, /docs."""
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.errors import DependencyError

    try:
        import uvicorn

        from neuron_spec.serving.app import create_app
    except ImportError as error:
        raise DependencyError(
            "not installed", where=error.name, mend="pip install 'neuron-spec[serve]'"
        ) from error
    opened = open_artifact(artifact)
    app = create_app(opened, model_name=model_name, speculate=not no_speculation)
    say(f"loading {opened.directory}; OpenAI base URL: http://{host}:{port}/v1")
    uvicorn.run(
        app, host=host, port=port, log_level="info", timeout_graceful_shutdown=_DRAIN_LIMIT_S
    )
