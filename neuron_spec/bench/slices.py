"""Built-in prompts by kind of work, for a first look at which kinds pay.

Eight a kind: enough for an interval of each kind's speed-up, which the spread of its prompts makes.
Your own prompts (`--prompts`) are what counts. Written for this purpose and taken from nowhere: in
no training or evaluation data of the demo heads. `creative` is meant for a high temperature.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from neuron_spec.bench.workload import BUILT_IN, WorkloadRow, read_workload
from neuron_spec.errors import UserError, nearest


@cache
def slices() -> dict[str, tuple[WorkloadRow, ...]]:
    """Kind of work -> its prompts."""
    text = files("neuron_spec.bench").joinpath("slices.json").read_text(encoding="utf-8")
    prompts: dict[str, list[str]] = json.loads(text)
    return {
        kind: tuple(WorkloadRow([{"role": "user", "content": text}], kind) for text in texts)
        for kind, texts in prompts.items()
    }


def rows_of(prompts: Path | None, kinds: str | None, limit: int | None) -> list[WorkloadRow]:
    """The workload that a user names: a file, built-in prompts of some kinds, or a first look.

    Raises:
        UserError: both, an unknown kind, or an unreadable file.
    """
    if prompts and kinds:
        raise UserError("give either --prompts or --kinds")
    if prompts:
        return read_workload(prompts, limit=limit)
    if not kinds:
        return list(BUILT_IN[:limit])
    known = slices()
    names = list(known) if kinds == "all" else kinds.split(",")
    for name in names:
        if name not in known:
            raise UserError(f"no such kind of work: {name}", mend=nearest(name, list(known)))
    return [row for name in names for row in known[name]][:limit]
