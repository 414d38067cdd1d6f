"""A whole run as plain data: what `bench --json` writes, and all that reports and plans read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from neuron_spec.bench.load import BY_LOAD, OFF, ON, Round, Rounds, Served
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.errors import UserError
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.metrics.costs import CostCurve
from neuron_spec.metrics.estimates import (
    Estimate,
    geometric_mean,
    quantile,
    ratio_of_pairs,
    ratio_of_sums,
)

FORMAT = "neuron-spec bench 1"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
NUM_SAMPLES_SHOWN = 3

Run = dict[str, Any]
"""What `run_of` returns and `read_run` reads back."""


def run_of(
    record: Mapping[str, Any],
    rows: Sequence[WorkloadRow],
    rounds: Rounds,
    costs: CostCurve | None,
) -> Run:
    """Put a run together; every figure with its interval and the number of samples behind it."""
    concurrencies = sorted({r.concurrency for r in rounds.rounds})
    return {
        "format": FORMAT,
        "record": dict(record),
        "notes": notes_of(rows, rounds, concurrencies),
        "warm_up_s": rounds.warm_up_s,
        "loads": [_load(rounds, way, c) for c in concurrencies for way in _ways(rounds)],
        "speed_ups": [
            _speed_up(rounds, way, c) for c in concurrencies for way in _ways(rounds) if way != OFF
        ],
        "kinds": _kinds(rows, rounds, concurrencies[0]),
        "prompts": _prompts(rows, rounds, concurrencies[0]),
        "step_costs": costs.as_list() if costs else None,
        "samples": _samples(rows, rounds, concurrencies[0]),
    }


def read_run(path: Path) -> Run:
    """A run that `bench --json` wrote.

    Raises:
        UserError: not such a file.
    """
    mend = "name what `neuron-spec bench ARTIFACT --json` wrote"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot be read: {error}", where=path, mend=mend) from None
    found = data.get("format") if isinstance(data, dict) else type(data).__name__
    if found != FORMAT:
        raise UserError("not a bench run", where=path, found=found, expected=FORMAT, mend=mend)
    run: Run = data
    return run


def notes_of(
    rows: Sequence[WorkloadRow], rounds: Rounds, concurrencies: Sequence[int]
) -> list[str]:
    """What a reader has to know before believing the figures."""
    notes = []
    if len(rows) == 1:
        notes.append("one prompt proves nothing: other prompts can give any other ratio")
    elif len(rows) < 20:
        notes.append(f"{len(rows)} prompts are a first look; measure on more of your own")
    repetitions = 1 + max(r.repetition for r in rounds.rounds)
    if repetitions < 2:
        notes.append("one repetition: throughput and speed-up have no interval")
    if max(concurrencies) > len(rows):
        notes.append(f"{len(rows)} prompts cannot keep {max(concurrencies)} requests in flight")
    return notes


def acceptance_of(served: Iterable[Served]) -> tuple[AcceptanceCounts, Estimate | None]:
    """Counts over all, and the length with an interval over requests."""
    total, pairs = AcceptanceCounts(), []
    for request in served:
        total.add(request.acceptance)
        if steps := request.acceptance.num_steps:
            pairs.append((float(steps + request.acceptance.num_accepted), float(steps)))
    return total, ratio_of_sums(pairs) if pairs else None


def _ways(rounds: Rounds) -> list[str]:
    found = {r.way for r in rounds.rounds}
    return [way for way in (OFF, ON, BY_LOAD) if way in found]


def _load(rounds: Rounds, way: str, concurrency: int) -> dict[str, Any]:
    """Figures of one way at one concurrency, over all repetitions."""
    own = rounds.of(way, concurrency)
    served = [request for r in own for request in r.requests]
    # A repetition of the same greedy request is no new sample of acceptance: the first one counts.
    counts, length = acceptance_of(own[0].requests)
    return {
        "way": way,
        "concurrency": concurrency,
        "num_requests": len(served),
        "num_repetitions": len(own),
        "num_output_tokens": sum(len(request.token_ids) for request in served),
        "throughput_tokens_per_s": geometric_mean([r.tokens_per_s for r in own]).as_dict(),
        "ttft_s": _percentiles(request.timing.ttft_s for request in served),
        "tpot_s": _percentiles(request.tpot_s for request in served),
        "total_s": _percentiles(request.timing.total_s for request in served),
        "acceptance": counts.as_dict(),
        "acceptance_length": length.as_dict() if length and counts.num_drafted else None,
    }


def _percentiles(values: Iterable[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {name: quantile(known, share).as_dict() for name, share in PERCENTILES.items()}


def _speed_up(rounds: Rounds, way: str, concurrency: int) -> dict[str, Any]:
    """Throughput against off, in pairs of one repetition."""
    off = {r.repetition: r for r in rounds.of(OFF, concurrency)}
    on = rounds.of(way, concurrency)
    pairs = [(r.tokens_per_s, off[r.repetition].tokens_per_s) for r in on]
    decode = _decode_ratio(on, list(off.values()))
    return {
        "way": way,
        "concurrency": concurrency,
        "throughput": ratio_of_pairs(pairs).as_dict(),
        "decoding": decode.as_dict() if decode else None,
        "identical": _num_identical(on, list(off.values())),
        "num_prompts": len(on[0].requests),
    }


def _decode_ratio(on: Sequence[Round], off: Sequence[Round]) -> Estimate | None:
    """How many times faster after the first token, request by request of the workload."""
    pairs = [
        (plain, own)
        for own, plain in zip(_tpots(on), _tpots(off), strict=True)
        if own is not None and plain is not None
    ]
    return ratio_of_pairs(pairs) if pairs else None


def _tpots(rounds: Sequence[Round]) -> list[float | None]:
    """Median over the repetitions, row by row."""
    return [_median(r.tpot_s for r in requests) for requests in _by_row(rounds)]


def _by_row(rounds: Sequence[Round]) -> list[tuple[Served, ...]]:
    return list(zip(*(r.requests for r in rounds), strict=True))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _num_identical(on: Sequence[Round], off: Sequence[Round]) -> int:
    """Rows whose tokens are the same both ways; means something for greedy output only."""
    pairs = zip(on[0].requests, off[0].requests, strict=True)
    return sum(own.token_ids == plain.token_ids for own, plain in pairs)


def _kinds(rows: Sequence[WorkloadRow], rounds: Rounds, concurrency: int) -> list[dict[str, Any]]:
    """Which kinds of work pay: speed-up over their prompts, request by request."""
    on, off = rounds.of(ON, concurrency), rounds.of(OFF, concurrency)
    rates_on, rates_off = _rates(on), _rates(off)
    kinds: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        kinds.setdefault(row.category, []).append(place)
    result = []
    for kind, places in kinds.items():
        counts, length = acceptance_of(on[0].requests[place] for place in places)
        pairs = [(rates_on[place], rates_off[place]) for place in places]
        result.append(
            {
                "kind": kind,
                "num_prompts": len(places),
                "speed_up": ratio_of_pairs(pairs).as_dict(),
                "acceptance": counts.as_dict(),
                "acceptance_length": length.as_dict() if length else None,
            }
        )
    return result


def _rates(rounds: Sequence[Round]) -> list[float]:
    """Tokens per second of every row, the median over the repetitions."""
    return [median(r.tokens_per_s for r in requests) for requests in _by_row(rounds)]


def _prompts(rows: Sequence[WorkloadRow], rounds: Rounds, concurrency: int) -> list[dict[str, Any]]:
    on, off = rounds.of(ON, concurrency), rounds.of(OFF, concurrency)
    rates_on, rates_off = _rates(on), _rates(off)
    result = []
    for place, row in enumerate(rows):
        own, plain = on[0].requests[place], off[0].requests[place]
        peer = rounds.peer_tokens_per_s.get(place)
        result.append(
            {
                "kind": row.category,
                "num_output_tokens": len(own.token_ids),
                "off_tokens_per_s": rates_off[place],
                "on_tokens_per_s": rates_on[place],
                "peer_tokens_per_s": median(peer) if peer else None,
                "ratio": rates_on[place] / rates_off[place],
                "identical": own.token_ids == plain.token_ids,
                "acceptance": own.acceptance.as_dict(),
            }
        )
    return result


def _samples(rows: Sequence[WorkloadRow], rounds: Rounds, concurrency: int) -> list[dict[str, Any]]:
    """The first outputs with where their text came from, for the token view."""
    served = rounds.of(ON, concurrency)[0].requests[:NUM_SAMPLES_SHOWN]
    return [
        {
            "kind": rows[request.row].category,
            "text": request.text,
            "pieces": [list(piece) for piece in request.pieces],
        }
        for request in served
    ]


def decode_share(run: Run) -> float | None:
    """How much of a request's time goes by after its first token, without speculation."""
    shares = [
        1 - load["ttft_s"]["p50"]["value"] / load["total_s"]["p50"]["value"]
        for load in run["loads"]
        if load["way"] == OFF and load["ttft_s"]
    ]
    return fmean(shares) if shares else None
