"""Two runs side by side, or why they cannot stand side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neuron_spec.bench.record import NOT_TOLD
from neuron_spec.bench.run import Run
from neuron_spec.metrics.estimates import CONFIDENCE, Estimate, normal_quantile

# What has to be the same, by its place in the record, and why.
_SAME = {
    "measured": "over HTTP the network and the server's queue are in the figures",
    "target.sha256": "another target writes other text at another speed",
    "machine.server": "another machine has another speed",
    "precision": "arithmetic of another width has another speed",
    "machine": "another machine, or another number of threads, has another speed",
    "backend": "another backend computes otherwise",
    "workload.sha256": "acceptance and speed depend on the prompts",
    "options": "output lengths and sampling decide how much is drafted and accepted",
}
# What two runs are compared for: told, and allowed to differ.
_TOLD = (
    "draft",
    "rule",
    "shape",
    "libraries",
    "neuron_spec_version",
    "artifact.name",
    "endpoints",
    "off",
)


def differences(first: Run, second: Run) -> tuple[list[str], list[str]]:
    """(what forbids a comparison, what the comparison is about), each as sentences."""
    forbidding: list[str] = []
    told: list[str] = []
    for place, reason in _SAME.items():
        one, other = _at(first["record"], place), _at(second["record"], place)
        if NOT_TOLD in (one, other):
            told.append(f"{place}: not told by an endpoint, so that it may differ: {reason}")
        elif one != other:
            forbidding.append(f"{place}: {difference(one, other)}: {reason}")
    for place in _TOLD:
        one, other = _at(first["record"], place), _at(second["record"], place)
        if one != other:
            told.append(f"{place}: {difference(one, other)}")
    if _claims(first) != _claims(second):
        told.append("claims: the two rules do not promise the same; see `verify`")
    return forbidding, told


def compare_runs(first: Run, second: Run) -> dict[str, Any]:
    """Second against first, load by load, if they are comparable.

    Returns:
        `comparable`, `forbidding`, `told`; and in `loads` the ratios, second / first, of what both
        have: throughput and speed-up with intervals, each run's samples being independent.
    """
    forbidding, told = differences(first, second)
    if forbidding:
        return {"comparable": False, "forbidding": forbidding, "told": told, "loads": []}
    loads = []
    others = {_key(load): load for load in second["loads"]}
    for load in first["loads"]:
        other = others.get(_key(load), {})
        if not (load["throughput_tokens_per_s"] and other.get("throughput_tokens_per_s")):
            continue
        rounds = _requests_a_round(load), _requests_a_round(other)
        if rounds[0] == rounds[1]:
            loads.append(_compared(load, other))
        else:  # of few requests most run while not all are in flight
            told.append(
                f"{load['way']}, {load['concurrency']} in flight: not compared, rounds have "
                f"{rounds[0]:g} and {rounds[1]:g} requests"
            )
    return {"comparable": True, "forbidding": [], "told": told, "loads": loads}


def _compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    name = "throughput_tokens_per_s"
    one, other = Estimate(**first[name]), Estimate(**second[name])
    ratio = _ratio(other, one)
    is_clear = ratio.low is not None and ratio.high is not None
    return {
        "way": first["way"],
        "concurrency": first["concurrency"],
        "first": one.as_dict(),
        "second": other.as_dict(),
        "ratio": ratio.as_dict(),
        "verdict": _verdict(ratio) if is_clear else "no interval: repeat both runs more often",
        "acceptance_length": [first["acceptance_length"], second["acceptance_length"]],
    }


def _ratio(one: Estimate, other: Estimate) -> Estimate:
    value, count = one.value / other.value, min(one.num_samples, other.num_samples)
    errors = (one.relative_error, other.relative_error)
    if errors[0] is None or errors[1] is None:
        return Estimate(value, None, None, count)
    half = normal_quantile(CONFIDENCE) * math.hypot(errors[0], errors[1])
    return Estimate(value, value * math.exp(-half), value * math.exp(half), count, CONFIDENCE)


def _verdict(ratio: Estimate) -> str:
    if ratio.low is not None and ratio.low > 1:
        return "the second is faster"
    if ratio.high is not None and ratio.high < 1:
        return "the second is slower"
    return "no difference beyond the interval"


def _key(load: Mapping[str, Any]) -> tuple[str, int]:
    return load["way"], load["concurrency"]


def _requests_a_round(load: Mapping[str, Any]) -> float:
    total, repetitions = load["num_requests"] + load["num_failed"], load["num_repetitions"]
    return float(total / repetitions)


def _claims(run: Run) -> list[tuple[str, str]]:
    return [(claim["level"], claim["status"]) for claim in run["record"]["claims"]]


def _at(record: Mapping[str, Any], place: str) -> Any:
    value: Any = record
    for part in place.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def difference(one: Any, other: Any) -> str:
    """Only the parts that differ, short enough to read."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        names = sorted(n for n in {*one, *other} if one.get(n) != other.get(n))
        return ", ".join(f"{n} {_short(one.get(n))} and {_short(other.get(n))}" for n in names)
    return f"{_short(one)} and {_short(other)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
