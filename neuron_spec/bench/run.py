"""A whole run as plain data: what `bench --json` writes, and all that reports and plans read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from neuron_spec.bench.rounds import OFF, Round, Rounds, Served, by_row, passes_at
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.errors import UserError
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.metrics.costs import CostCurve
from neuron_spec.metrics.estimates import (
    Estimate,
    geometric_mean,
    mean,
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
        "notes": [*notes_of(rows, rounds, concurrencies), *rounds.notes],
        "warm_up_s": rounds.warm_up_s,
        "loads": [_load(rounds, way, c) for c in concurrencies for way in rounds.ways],
        "speed_ups": [
            _speed_up(rounds, way, c)
            for c in concurrencies
            for way in rounds.ways
            if way != OFF and OFF in rounds.ways
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
    most = max(concurrencies)
    if (passes := passes_at(most, len(rows))) > 1:
        notes.append(
            f"{passes} passes over the prompts a round keep {most} requests in flight; where "
            "prompts are cached, the later ones are faster"
        )
    if failed := sum(len(r.failures) for r in rounds.rounds):
        total = failed + sum(len(r.requests) for r in rounds.rounds)
        notes.append(
            f"{failed} of {total} requests failed: times and rates are of those that were answered"
        )
    return notes


def acceptance_of(served: Iterable[Served]) -> tuple[AcceptanceCounts, Estimate | None]:
    """Counts over all that tell it, and the length with an interval over requests."""
    total, pairs = AcceptanceCounts(), []
    for request in served:
        counts = request.acceptance or AcceptanceCounts()
        total.add(counts)
        if steps := counts.num_steps:
            pairs.append((float(steps + counts.num_accepted), float(steps)))
    return total, ratio_of_sums(pairs) if pairs else None


def _load(rounds: Rounds, way: str, concurrency: int) -> dict[str, Any]:
    """Figures of one way at one concurrency, over all repetitions."""
    own = rounds.of(way, concurrency)
    served = [request for r in own for request in r.requests]
    failures = Counter(failure for r in own for failure in r.failures)
    rates = [r.tokens_per_s for r in own if r.tokens_per_s > 0]
    counts, length = _round_acceptance(own[0])
    return {
        "way": way,
        "concurrency": concurrency,
        "num_requests": len(served),
        "num_failed": failures.total(),
        "failures": dict(failures),
        "num_repetitions": len(own),
        "num_output_tokens": sum(request.num_tokens for request in served),
        "throughput_tokens_per_s": geometric_mean(rates).as_dict() if rates else None,
        "ttft_s": _percentiles(request.timing.ttft_s for request in served),
        "tpot_s": _percentiles(request.tpot_s for request in served),
        "total_s": _percentiles(request.timing.total_s for request in served),
        "acceptance": counts.as_dict() if counts else None,
        "acceptance_length": length.as_dict() if length and counts and counts.num_drafted else None,
    }


def _round_acceptance(own: Round) -> tuple[AcceptanceCounts | None, Estimate | None]:
    """Of one round, once a row: the same greedy request again is no new sample of acceptance."""
    if any(request.acceptance is not None for request in own.requests):
        return acceptance_of(requests[0] for requests in by_row([own]).values())
    counts = own.acceptance
    if counts is None or counts.length is None:
        return counts, None
    return counts, Estimate(counts.length, None, None, 1)  # one sum tells no spread


def _percentiles(values: Iterable[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    told = {name: quantile(known, share).as_dict() for name, share in PERCENTILES.items()}
    return {**told, "mean": mean(known).as_dict()}


def _speed_up(rounds: Rounds, way: str, concurrency: int) -> dict[str, Any]:
    """Throughput against off, in pairs of one repetition in which nothing failed."""
    off = {r.repetition: r for r in rounds.of(OFF, concurrency)}
    pairs = [
        (r.tokens_per_s, off[r.repetition].tokens_per_s)
        for r in rounds.of(way, concurrency)
        if not r.failures and not off[r.repetition].failures
    ]
    own, plain = rounds.by_row(way, concurrency), rounds.by_row(OFF, concurrency)
    tpots = [(_tpot(plain[row]), _tpot(own[row])) for row in own if row in plain]
    known = [(a, b) for a, b in tpots if a is not None and b is not None]
    first = [by_row([rounds.of(each, concurrency)[0]]) for each in (way, OFF)]
    both = [row for row in first[0] if row in first[1]]
    return {
        "way": way,
        "concurrency": concurrency,
        "throughput": ratio_of_pairs(pairs).as_dict() if pairs else None,
        "decoding": ratio_of_pairs(known).as_dict() if known else None,
        "identical": sum(first[0][row][0].output == first[1][row][0].output for row in both),
        "num_prompts": len(both),
    }


def _tpot(requests: Sequence[Served]) -> float | None:
    """Median over the repetitions."""
    known = [request.tpot_s for request in requests if request.tpot_s is not None]
    return median(known) if known else None


def _kinds(rows: Sequence[WorkloadRow], rounds: Rounds, concurrency: int) -> list[dict[str, Any]]:
    """Which kinds of work pay: speed-up over their prompts, request by request."""
    own, off = rounds.by_row(rounds.main_way, concurrency), _off(rounds, concurrency)
    kinds: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        kinds.setdefault(row.category, []).append(place)
    result = []
    for kind, places in kinds.items():
        first = [own[place][0] for place in places if place in own]
        counts, length = acceptance_of(first)
        is_told = any(request.acceptance is not None for request in first)
        pairs = [(_rate(own[p]), _rate(off[p])) for p in places if p in own and p in off]
        result.append(
            {
                "kind": kind,
                "num_prompts": len(places),
                "speed_up": ratio_of_pairs(pairs).as_dict() if pairs else None,
                "acceptance": counts.as_dict() if is_told else None,
                "acceptance_length": length.as_dict() if length else None,
            }
        )
    return result


def _off(rounds: Rounds, concurrency: int) -> dict[int, list[Served]]:
    """What the main way is compared with; nothing where it is all there is."""
    return rounds.by_row(OFF, concurrency) if rounds.main_way != OFF else {}


def _rate(requests: Sequence[Served]) -> float:
    """Tokens per second of a row, the median over the repetitions."""
    return median(request.tokens_per_s for request in requests)


def _prompts(rows: Sequence[WorkloadRow], rounds: Rounds, concurrency: int) -> list[dict[str, Any]]:
    """One entry a row; what was not measured, or never answered, is None."""
    own, off = rounds.by_row(rounds.main_way, concurrency), _off(rounds, concurrency)
    return [
        {
            "kind": row.category,
            **_prompt(own.get(place, []), off.get(place, [])),
            "peer_tokens_per_s": median(peer)
            if (peer := rounds.peer_tokens_per_s.get(place))
            else None,
        }
        for place, row in enumerate(rows)
    ]


def _prompt(own: Sequence[Served], off: Sequence[Served]) -> dict[str, Any]:
    on_rate, off_rate = (_rate(requests) if requests else None for requests in (own, off))
    acceptance = own[0].acceptance if own else None
    return {
        "num_output_tokens": own[0].num_tokens if own else None,
        "off_tokens_per_s": off_rate,
        "on_tokens_per_s": on_rate,
        "ratio": on_rate / off_rate if on_rate and off_rate else None,
        "identical": own[0].output == off[0].output if own and off else None,
        "acceptance": acceptance.as_dict() if acceptance else None,
    }


def _samples(rows: Sequence[WorkloadRow], rounds: Rounds, concurrency: int) -> list[dict[str, Any]]:
    """The first outputs with where their text came from, for the token view."""
    rows_served = by_row(rounds.of(rounds.main_way, concurrency)[:1])
    served = [requests[0] for requests in rows_served.values()][:NUM_SAMPLES_SHOWN]
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
