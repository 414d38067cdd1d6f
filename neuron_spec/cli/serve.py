"""`neuron-spec serve`: an artifact behind OpenAI's protocol."""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import click

from neuron_spec.cli.common import progress_bars, say

_SPINS = 50_000  # longer than between two passes of a step


@click.command(
    "serve",
    short_help="Serve an artifact over OpenAI's protocol.",
    epilog="Example: neuron-spec serve build/smollm2-135m-eagle.cpu/artifact --port 8000",
)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes a free one.",
)
@click.option("--model-name", help="Name in /v1/models.  [default: the spec's name]")
@click.option("--no-speculation", is_flag=True, help="Decode with the target alone.")
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help="Keys that open /v1, one a line; or set NEURON_SPEC_API_KEYS.  [default: no key]",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    help="Choices that may wait for a slot; more get 429.",
)
@click.option(
    "--prefix-cache-mb",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    help="Memory for beginnings of prompts, in MiB, so that prompts which begin the same start "
    "sooner; 0 keeps none.",
)
@click.option(
    "--max-body-mb",
    type=click.FloatRange(0, min_open=True),
    default=4.0,
    show_default=True,
    help="Size of a request, in MiB; more gets 413.",
)
@click.option(
    "--request-timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds a request may take, waiting included; then 504.",
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds running requests may go on after SIGTERM; new ones get 503.",
)
@click.option(
    "--log-format", type=click.Choice(["json", "text"]), default="json", show_default=True
)
@click.option("--no-warm-up", is_flag=True, help="Do not run every graph once before serving.")
@click.option(
    "--ray", is_flag=True, help="Serve replicas on Ray: RAY_ADDRESS, or one started here."
)
@click.option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="With --ray: processes with the artifact.",
)
@click.option(
    "--max-replicas",
    type=click.IntRange(1),
    help="With --ray: how many Ray may start under load.  [default: --replicas]",
)
@click.option(
    "--cpus-per-replica",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="With --ray: CPUs set aside for one; NeuronCores are the artifact's TP degree.",
)
def command(artifact: Path, host: str, port: int, ray: bool, **options: Any) -> None:
    """Serve ARTIFACT: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics."""
    from neuron_spec.errors import DependencyError

    spin_briefly(os.environ)
    if not ray:
        _refuse_given("replicas", "max_replicas", "cpus_per_replica")
    try:
        from neuron_spec.serving.server import bind
    except ImportError as error:
        raise DependencyError(
            "not installed", where=error.name, mend="pip install 'neuron-spec[serve]'"
        ) from error
    with bind(host, port) as listening:  # before the model is loaded
        if not ray:
            _serve(artifact, host, listening, options)
            return
        port = listening.getsockname()[1]
    _serve_replicas(artifact, host, port, options)  # Ray's proxy takes the address itself


def spin_briefly(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads, which wait for work by spinning for milliseconds, give their cores to
    the server's other threads sooner. Read when PyTorch is imported; what is set stays."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = str(_SPINS)


def _refuse_given(*names: str) -> None:
    for name in names:
        if (
            click.get_current_context().get_parameter_source(name)
            == click.core.ParameterSource.COMMANDLINE
        ):
            raise click.UsageError(f"--{name.replace('_', '-')} needs --ray")


def _serve_replicas(artifact: Path, host: str, port: int, options: dict[str, Any]) -> None:
    from neuron_spec.scaling.run import run
    from neuron_spec.scaling.settings import read_settings
    from neuron_spec.serving.settings import read_api_keys

    key_file = options.pop("api_key_file")
    keys = read_api_keys(key_file)
    args = {
        "artifact": str(artifact.absolute()),
        "speculate": not options.pop("no_speculation"),
        "warm_up": not options.pop("no_warm_up"),
        "request_timeout_s": options.pop("request_timeout"),
        "drain_s": options.pop("drain_timeout"),
        "api_key_file": key_file and str(key_file.absolute()),
        "requires_api_key": bool(keys),
        **options,
    }
    say(f"starting {options['replicas']} x {artifact} on Ray; OpenAI base URL: {_url(host, port)}")
    run(read_settings(args), host=host, port=port, say=say)


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def _serve(artifact: Path, host: str, listening: Any, options: dict[str, Any]) -> None:
    from neuron_spec.artifacts import open_artifact
    from neuron_spec.engine import open_session
    from neuron_spec.engine.warmup import warm_up
    from neuron_spec.serving.app import create_app
    from neuron_spec.serving.server import serve

    settings, opened = _settings(options), open_artifact(artifact)
    say(f"loading {opened.directory}; OpenAI base URL: {_url(host, listening.getsockname()[1])}")
    session = open_session(opened)
    if not options["no_warm_up"]:
        start = time.monotonic()
        with progress_bars() as report:
            count = warm_up(session, report=report)
        say(f"warmed up: {count} passes in {time.monotonic() - start:.1f} s")
    session.cache_prefixes(options["prefix_cache_mb"] << 20)
    app = create_app(
        opened,
        session=session,
        model_name=options["model_name"],
        speculate=not options["no_speculation"],
        settings=settings,
    )
    say("ready")
    try:
        serve(app, listening, settings=settings, log_form=options["log_format"])
    except KeyboardInterrupt:
        say("ended by Ctrl-C; no request was left open")


def _settings(options: dict[str, Any]) -> Any:
    from neuron_spec.serving.settings import ServerSettings, read_api_keys

    return ServerSettings(
        api_keys=read_api_keys(options["api_key_file"]),
        max_body_bytes=int(options["max_body_mb"] * (1 << 20)),
        max_waiting=options["max_waiting"],
        request_timeout_s=options["request_timeout"],
        drain_s=options["drain_timeout"],
    )
