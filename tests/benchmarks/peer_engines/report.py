"""A whole run as plain data, for --json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .engines import OURS, PLAIN
from .figures import ALL, Measured, Results, like_against_like, ratio, verdict

FORMAT = "neuron-spec bench-peers 1"


def report_of(
    record: Mapping[str, Any],
    results: Results,
    absent: Mapping[str, str],
    bounds: Mapping[str, Any],
) -> dict[str, Any]:
    """Every figure, with the seconds that it comes from.

    Args:
        record: what was run, on what; `prompts` are names.
        absent: engine -> why it has no figures.
        bounds: what memory allows: `weight_bytes`, `bytes_per_s`, `tokens_per_s`.
    """
    names: Sequence[str] = record["prompts"]
    places = {**dict(zip(names, range(len(names)), strict=True)), "all": ALL}
    plain = results[PLAIN]
    return {
        "format": FORMAT,
        "record": dict(record),
        "bounds": dict(bounds),
        "engines": [
            _engine(measured, plain, places, bounds["tokens_per_s"])
            for measured in results.values()
        ],
        "absent": dict(absent),
        "like_against_like": [
            {
                "ours": ours.engine.name,
                "peer": peer.engine.name,
                "ratio": {name: ratio(ours, peer, at).as_dict() for name, at in places.items()},
            }
            for ours, peer in like_against_like(results)
        ],
        "summary": {name: verdict(results, at) for name, at in places.items()},
    }


def _engine(
    measured: Measured, plain: Measured, places: Mapping[str, int], bound: float
) -> dict[str, Any]:
    differences = [measured.differs_at(plain, place) for place in range(len(plain.tokens))]
    return {
        "name": measured.engine.name,
        "version": measured.version,
        "tokens_per_s": {name: measured.rate(at).as_dict() for name, at in places.items()},
        "share_of_bound": measured.rate(ALL).median / bound,
        "differs_from_our_plain_at": differences,
        "outputs_that_changed": measured.num_changed,
        "num_tokens": [len(tokens) for tokens in measured.tokens],
        "num_steps": measured.num_steps,
        "idle_cpu_s": measured.idle_cpu_s,
        "seconds": measured.seconds,
    }


def is_ours_wrong(report: Mapping[str, Any]) -> bool:
    """Whether one of ours failed, or gave in float32 what plain decoding does not.

    In other types a pass over several positions may round differently from one over one, so that
    a near tie can fall to another token: told in the table, and no fault of the run.
    """
    failed = any(name.startswith(f"{OURS} ") for name in report["absent"])
    own = [engine for engine in report["engines"] if engine["name"].startswith(f"{OURS} ")]
    differ = any(
        engine["outputs_that_changed"]
        or any(p is not None for p in engine["differs_from_our_plain_at"])
        for engine in own
    )
    return failed or (differ and report["record"]["dtype"] == "float32")
