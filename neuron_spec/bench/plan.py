"""From a run to a plan, and from a plan to a spec."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuron_spec.bench.load import NO_OFF_MEND
from neuron_spec.bench.rounds import OFF
from neuron_spec.bench.run import Run
from neuron_spec.errors import UserError
from neuron_spec.metrics.costs import CostCurve
from neuron_spec.metrics.estimates import Estimate, ratio_of_sums
from neuron_spec.planner import Plan, make_plan, tokens_by_draft_length


def plan_of(run: Run) -> Plan:
    """The plan that a run gives.

    Raises:
        UserError: the run has no step costs, or nothing was drafted in it.
    """
    if not run["step_costs"]:
        mend = "measure again, without --no-steps of `bench`"
        if always_drafts(run) and not run["record"].get("off"):
            mend = f"measure again: {NO_OFF_MEND}"
        raise UserError("the run has no step costs", mend=mend)
    costs = CostCurve.from_list(run["step_costs"])
    return make_plan(
        draft_lengths_of(run), costs, prompt_s_per_token=prompt_s_per_token_of(run) or 0.0
    )


def prompt_s_per_token_of(run: Run) -> float | None:
    """Mean time to first token over mean output tokens, without speculation and one request at a
    time, where nothing else is waited for; None where that was not measured, or was by a version
    that did not tell means."""
    for load in run["loads"]:
        if (load["way"], load["concurrency"]) == (OFF, 1) and "mean" in (load["ttft_s"] or {}):
            ttft_s: float = load["ttft_s"]["mean"]["value"]
            num_tokens: int = load["num_output_tokens"]
            return ttft_s * load["num_requests"] / num_tokens if num_tokens else None
    return None


def always_drafts(run: Run) -> bool:
    """Whether the artifact has one draft length, and cannot follow the load."""
    return bool(run["record"]["draft"].get("always_drafts"))


def planned_line(plan: Plan, run: Run) -> str:
    """The line for `[draft]`; empty where an artifact has one draft length."""
    return "" if always_drafts(run) else plan.as_toml


def draft_lengths_of(run: Run) -> dict[int, Estimate]:
    """Draft length -> tokens a step, from the acceptance in a run.

    Raises:
        UserError: nothing was drafted in it, or it does not tell of single requests.
    """
    acceptances = [prompt["acceptance"] for prompt in run["prompts"] if prompt["acceptance"]]
    if not any(acceptance["num_drafted_tokens"] for acceptance in acceptances):
        raise UserError(
            "nothing was drafted in this run, or it does not tell of single requests",
            mend="measure an artifact with a draft",
        )
    draft = dict(run["record"]["draft"])
    if not isinstance(draft["num_draft_tokens"], int):  # an endpoint that does not tell
        draft["num_draft_tokens"] = max(len(a["drafted_by_position"]) for a in acceptances)
        draft |= {"tree": None, "dynamic_tree": None}
    return _tokens(draft, acceptances)


def _tokens(
    draft: Mapping[str, Any], acceptances: Sequence[Mapping[str, Any]]
) -> dict[int, Estimate]:
    largest = draft["num_draft_tokens"]
    counts = [acceptance["steps_by_num_accepted"] for acceptance in acceptances]
    if not draft["tree"] and not draft["dynamic_tree"]:
        return tokens_by_draft_length(counts, largest)
    # A tree with fewer nodes loses branches, and acceptance by depth does not say which counted:
    # only the whole tree is known.
    pairs = [
        (float(acceptance["num_steps"] + acceptance["num_accepted_tokens"]), float(steps))
        for acceptance in acceptances
        if (steps := acceptance["num_steps"])
    ]
    return {largest: ratio_of_sums(pairs)}


def read_rank_rates(path: Path) -> list[list[float]]:
    """[depth][rank] acceptance from a JSON file.

    Raises:
        UserError: not a list of lists of numbers within 0 … 1 that sum to at most 1.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot be read: {error}", where=path) from None
    rows = data if isinstance(data, list) else []
    if not rows or not all(_is_rates(row) for row in rows):
        raise UserError(
            "not acceptance by depth and rank",
            where=path,
            expected="[[0.6, 0.2], [0.5, 0.1]]: a row a depth, each summing to at most 1",
        )
    return [list(map(float, row)) for row in rows]


def with_by_load(text: str, line: str) -> str:
    """A spec's TOML with this `by_load` line in [draft], in place of one that was there.

    Raises:
        UserError: no [draft] section.
    """
    lines = text.split("\n")
    start = next((n for n, row in enumerate(lines) if _is_header(row, "draft")), None)
    if start is None:
        raise UserError("no [draft] section", where="the spec", mend="add one with a draft.method")
    end = next((n for n in range(start + 1, len(lines)) if _is_header(lines[n])), len(lines))
    section: list[str] = []
    open_brackets = 0
    for row in lines[start + 1 : end]:
        if open_brackets or re.match(r"\s*by_load\s*=", row):  # an array may span lines
            bare = row.split("#")[0]
            open_brackets += bare.count("[") - bare.count("]")
            continue
        section.append(row)
    return "\n".join([*lines[: start + 1], line, *section, *lines[end:]])


def _is_header(row: str, name: str = r"[\w.\-\"' ]+") -> bool:
    return re.match(rf"\s*\[\[?\s*{name}\s*\]\]?\s*(#.*)?$", row) is not None


def _is_rates(row: Any) -> bool:
    is_numbers = isinstance(row, list) and all(type(rate) in (int, float) for rate in row)
    return is_numbers and all(0 <= rate <= 1 for rate in row) and sum(row) <= 1 + 1e-9
