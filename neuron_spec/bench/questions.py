"""The questions that a deployment of speculation settles, in order, with the measured answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuron_spec.bench.plan import planned_line
from neuron_spec.bench.run import Run, decode_share
from neuron_spec.metrics.estimates import Estimate
from neuron_spec.planner import Plan

ONE_LENGTH = (
    "one draft length in its graph, which no by_load can change: one artifact a draft length, "
    "and one of the target alone for loads where k = 0 is best"
)


def questions_of(run: Run, plan: Plan) -> list[dict[str, str]]:
    """[{question, answer}], in the order in which they are worth asking."""
    record = run["record"]
    return [
        {"question": question, "answer": answer}
        for question, answer in (
            ("Is decoding the limit?", _decoding(run)),
            ("At which load?", _load(plan)),
            ("Which level of sameness is needed?", _level(record)),
            ("Which rule?", _rule(record)),
            ("Which draft, and how long?", _draft(run, plan)),
            ("How was it measured?", _measured(run)),
            ("What is recorded?", _recorded(record)),
        )
    ]


def _decoding(run: Run) -> str:
    share = decode_share(run)
    if share is None:
        return "not known: no request was measured without speculation"
    verdict = "yes" if share >= 0.5 else "no, the prompt's processing is: speculation helps little"
    return f"{verdict}: {share:.0%} of a request's time passes after its first token"


def _load(plan: Plan) -> str:
    best = "; ".join(
        f"{load.concurrency} in flight: k = {load.best.num_draft_tokens}, "
        f"{load.best.speed_up.shown()} times"
        for load in plan.loads
    )
    end = (
        f"from {plan.stops_paying_at} running requests on it does not pay"
        if plan.stops_paying_at
        else f"it pays up to the {plan.largest_concurrency} measured; beyond that nothing is known"
    )
    return f"{best}; {end}"


def _level(record: Mapping[str, Any]) -> str:
    claims = ", ".join(f"{claim['level']} {claim['status']}" for claim in record["claims"])
    return f"this rule's claims: {claims}; test it with `neuron-spec verify`"


def _rule(record: Mapping[str, Any]) -> str:
    rule = dict(record["rule"])
    name = rule.pop("name")
    values = ", ".join(f"{key} {value}" for key, value in rule.items())
    temperature = record["options"].get("temperature", 0)
    told = f"measured at temperature {temperature}"
    return f"{name}{f' with {values}' if values else ''}; {told}"


def _draft(run: Run, plan: Plan) -> str:
    draft = run["record"]["draft"]
    losing = [
        kind["kind"]
        for kind in run["kinds"]
        if (speed_up := kind["speed_up"]) is not None
        and (high := Estimate(**speed_up).high) is not None
        and high < 1
    ]
    parts = [f"{draft['method']}, {planned_line(plan, run) or ONE_LENGTH}"]
    if losing:
        parts.append(f"slower on these kinds of work: {', '.join(losing)}")
    return "; ".join(parts)


def _measured(run: Run) -> str:
    workload, loads = run["record"]["workload"], run["loads"]
    repetitions = max(load["num_repetitions"] for load in loads)
    parts = [f"{workload['num_prompts']} prompts, {repetitions} repetitions, on and off in turn"]
    return "; ".join([*parts, *run["notes"]])


def _recorded(record: Mapping[str, Any]) -> str:
    names = ", ".join(name.replace("_", " ") for name in record)
    return f"{names}; `neuron-spec compare` refuses runs where it matters"
