"""`neuron-spec inspect`: what a checkpoint or an artifact is.

From headers alone, but for an LM head that is stored although it is tied: it is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuron_spec.cli.common import json_option, out, plain, print_json, progress_bars

if TYPE_CHECKING:
    from neuron_spec.artifacts import NeuronRecord
    from neuron_spec.checkpoints.description import Description

_MAX_SENTENCES = 4  # of one kind: the whole stays on one screen


@click.command(
    "inspect",
    short_help="Say what a checkpoint or an artifact is.",
    epilog="Example: neuron-spec inspect checkpoints/smollm2-135m-instruct-eagle",
)
@click.argument("model")
@json_option
def command(model: str, as_json: bool) -> None:
    """Say what MODEL is: a checkpoint directory, a hub id, demo:NAME, or an artifact.

    For a checkpoint: what it is and for which target, sizes, what it holds and lacks, what in it
    contradicts itself, and what prepare would do. For an artifact: what was built, from what, and
    what its verification rule guarantees.
    """
    if (Path(model) / "manifest.json").is_file():
        _inspect_artifact(Path(model), as_json)
    else:
        _inspect_checkpoint(model, as_json)


def _inspect_checkpoint(model: str, as_json: bool) -> None:
    from neuron_spec.checkpoints.description import describe
    from neuron_spec.checkpoints.source import resolve_model

    with progress_bars() as progress:
        directory = resolve_model(model, Path.cwd(), progress=progress)
    description = describe(directory)
    if as_json:
        print_json(description.as_dict())
        return
    for name, value in _facts(description).items():
        _row(name, value)
    for name, colour, sentences in _remarks(description):
        for sentence in sentences[:_MAX_SENTENCES]:
            _row(name, sentence, colour)
        if (more := len(sentences) - _MAX_SENTENCES) > 0:
            _row(name, f"and {more} more (--json lists all)", colour)
    _row(*_verdict(description))


def _facts(description: Description) -> dict[str, str]:
    """What it is, as rows; those that do not apply are left out."""
    identity, config = description.identity, description.identity.config
    dtypes = ", ".join(f"{count} x {dtype}" for dtype, count in identity.dtypes.items())
    files = [path.name for path in identity.files.files]
    shape = f"hidden {config.hidden_size}, vocabulary {config.vocab_size or 'of the target'}"
    if config.num_hidden_layers:
        shape += (
            f", {config.num_hidden_layers} layer(s), {config.num_attention_heads} heads, "
            f"{config.num_key_value_heads} kv heads, {config.max_position_embeddings} positions"
        )
    rows = {
        "checkpoint": str(identity.directory),
        "is": f"{description.title}; family {identity.family}, model_type {config.model_type}",
        "for target": _target(description),
        "size": f"{identity.num_parameters:,} parameters, {_size(identity.num_bytes)} in "
        f"{len(identity.files.tensors)} tensors ({dtypes})",
        "files": files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} to {files[-1]}",
        "shape": shape,
        "present": ", ".join(description.present),
        "absent": ", ".join(description.absent),
    }
    return {name: value for name, value in rows.items() if value}


def _target(description: Description) -> str:
    """The target that the file names, and what any target must have."""
    names = [f"{target} ({field})" for field, target in description.named_targets]
    words = {
        "hidden_size": "hidden size {}",
        "vocab_size": "vocabulary {}",
        "num_hidden_layers": "{} layers",
        "min_num_hidden_layers": "at least {} layers",
    }
    needs = [words[name].format(size) for name, size in description.needed_of_target.items()]
    must = f"must have {', '.join(needs)}" if needs else ""
    if needs and not names:
        names = ["not named in the files"]
    return "; ".join(filter(None, [*names, must]))


def _remarks(description: Description) -> Iterator[tuple[str, str, list[str]]]:
    """(row, colour, sentences) of what is wrong, contradicts itself, or is still to be done."""
    identity = description.identity
    for kind in ("missing", "unexpected", "misshapen"):
        yield kind, "red", list(getattr(identity, kind))
    yield "refused", "red", [sentence for _, sentence in description.refusals]
    for severity, colour in (("error", "red"), ("warning", "yellow"), ("info", "cyan")):
        found = [item for item in description.contradictions if item.severity == severity]
        mends = severity != "info"
        yield (
            severity,
            colour,
            [f"{item.message}" + (f" (mend: {item.mend})" if mends else "") for item in found],
        )
    yield "to prepare", "yellow", list(identity.preparation)


def _verdict(description: Description) -> tuple[str, str, str]:
    """Row, sentence and colour of what to do next."""
    if not description.is_usable:
        return "not usable", "as it is, for the reasons above", "red"
    if description.is_draft_head and not description.identity.is_prepared:
        return "next", "neuron-spec prepare SPEC, with this as draft.model", "green"
    return "ready", "can be loaded as it is", "green"


def _row(name: str, value: str, colour: str = "") -> None:
    out().print(f"[bold {colour}]{name:>11}[/]  {plain(value)}")


def _size(num_bytes: int) -> str:
    """Decimal units, as disks and downloads count."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


def _compiled(neuron: NeuronRecord) -> str:
    graphs = sum(len(buckets) for buckets in neuron.graphs.values())
    weights = "holds its weights" if neuron.holds_weights else "links to the weights"
    return (
        f"{graphs} graphs for {neuron.instance}, SDK {neuron.sdk}, tp_degree {neuron.tp_degree}, "
        f"batch {neuron.batch_size}, in {neuron.compile_seconds:.0f} s; {weights}"
    )


def _inspect_artifact(directory: Path, as_json: bool) -> None:
    from neuron_spec.artifacts import open_artifact

    manifest = open_artifact(directory, any_libraries=True).manifest
    if as_json:
        print_json(manifest.model_dump(mode="json"))
        return
    method = manifest.spec["draft"]["method"]
    if manifest.lookup_method:
        method = f"{manifest.lookup_method} lookup before {method}"
    speculation = f"{method}, k = {manifest.num_draft_tokens}" if manifest.speculation else "off"
    libraries = ", ".join(f"{name} {version}" for name, version in manifest.libraries.items())
    rows = {
        "artifact": str(directory),
        "backend": f"{manifest.backend} ({libraries})",
        "created": f"{manifest.created_at} by neuron-spec {manifest.neuron_spec_version}",
        "speculation": speculation,
        "rule": manifest.spec["verification"]["rule"],
        **{role: model.directory for role, model in manifest.models.items()},
        "fingerprint": manifest.fingerprint,
        "pools": f"{manifest.compatibility} (equal where two can be prefill and decode pool)",
    }
    if manifest.neuron is not None:
        rows["compiled"] = _compiled(manifest.neuron)
    console = out()
    for name, value in rows.items():
        console.print(f"[bold]{name:>11}[/bold]  {plain(value)}")
    for claim in manifest.claims:
        console.print(f"[bold]{'claim':>11}[/bold]  {claim.level}: {claim.status}")
    console.print(f"[bold]{'':>11}[/bold]  {plain(manifest.numerics)}")
