"""A bench of endpoints from what a user names to a whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuron_spec.bench.http import Remote, measure_endpoints, ways_at
from neuron_spec.bench.load import LoadSettings
from neuron_spec.bench.record import record_of_endpoints
from neuron_spec.bench.run import Run, run_of
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.client import OpenAIClient, extra_fields
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.files import Progress, no_progress


def open_ways(
    named: Mapping[str, Any], probe: WorkloadRow, options: Mapping[str, Any]
) -> dict[str, Remote]:
    """The ways of decoding that a user names; see `ways_at`.

    Args:
        named: `endpoint`, `off_endpoint`, `model`, `body` and `off_body` as JSON, `tokenizer` as a
            directory, `timeout_s`; None where nothing is named.
    """
    directory = named["tokenizer"]
    tokenizer = ModelTokenizer(directory) if directory is not None else None

    def opened(address: str, extra: str | None) -> Remote:
        url, _, model = address.partition("#")
        client = OpenAIClient(url, model or named["model"], timeout_s=named["timeout_s"])
        return Remote(client, extra_fields(extra), tokenizer=tokenizer)

    on, off = opened(named["endpoint"], named["body"]), None
    if named["off_endpoint"] is not None or named["off_body"] is not None:
        off = opened(named["off_endpoint"] or named["endpoint"], named["off_body"])
    return ways_at(on, off, probe, options)


def run_endpoints(
    ways: Mapping[str, Remote],
    rows: Sequence[WorkloadRow],
    settings: LoadSettings,
    *,
    progress: Progress = no_progress,
) -> Run:
    """Measure, and put a run together; a server's step costs are its own."""
    rounds = measure_endpoints(ways, rows, settings, progress=progress)
    return run_of(record_of_endpoints(ways, rows, settings.options), rows, rounds, None)
