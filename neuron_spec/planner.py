"""Best draft length per load, from what was measured: pure functions, nothing runs in here.

A step that drafts k tokens gives E(k) tokens and takes T(k, c) seconds with c requests running;
without speculation it gives 1 and takes T(0, c). So a token takes T(k, c) / E(k), and beside it
what the prompts of the c - 1 other requests take of the time, S for each: (c - 1) · S, whatever k
is. The speed-up is the time without speculation over that with it. E comes from the numbers of
accepted tokens: a chain cut to k tokens accepts what the longer one accepted, at most k.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_spec.metrics.costs import CostCurve
from neuron_spec.metrics.estimates import CONFIDENCE, Estimate, normal_quantile, ratio_of_sums
from neuron_spec.theory import rank_rate

TOLERANCE = 0.01
"""Of several draft lengths within 1 % of the best the shortest is taken: it costs least if the
acceptance turns out lower than measured."""


@dataclass(frozen=True)
class Option:
    """One draft length at one concurrency.

    Attributes:
        break_even_length: tokens that a step has to give so that plain steps take no less time.
    """

    num_draft_tokens: int
    tokens_per_step: Estimate
    step_s: Estimate
    break_even_length: float
    speed_up: Estimate

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "num_draft_tokens": self.num_draft_tokens,
            "tokens_per_step": self.tokens_per_step.as_dict(),
            "step_s": self.step_s.as_dict(),
            "speed_up": self.speed_up.as_dict(),
            "break_even_length": self.break_even_length,
        }


@dataclass(frozen=True)
class LoadPlan:
    """All draft lengths at one measured concurrency, and the best of them."""

    concurrency: int
    options: tuple[Option, ...]
    best: Option

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "concurrency": self.concurrency,
            "best_num_draft_tokens": self.best.num_draft_tokens,
            "speed_up": self.best.speed_up.as_dict(),
            "options": [option.as_dict() for option in self.options],
        }


@dataclass(frozen=True)
class Plan:
    """What to write into a spec.

    Attributes:
        by_load: (from so many running requests on, k), for `draft.by_load`.
        stops_paying_at: the number of running requests from which on nothing is drafted; None if
            speculation pays at all loads measured.
        largest_concurrency: the largest load measured; what lies beyond is not known.
    """

    loads: tuple[LoadPlan, ...]
    by_load: tuple[tuple[int, int], ...]
    stops_paying_at: int | None
    largest_concurrency: int

    @property
    def as_toml(self) -> str:
        """The line for `[draft]`."""
        bands = ", ".join(f"[{first}, {k}]" for first, k in self.by_load)
        return f"by_load = [{bands}]"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "by_load": [list(band) for band in self.by_load],
            "toml": self.as_toml,
            "stops_paying_at": self.stops_paying_at,
            "largest_concurrency": self.largest_concurrency,
            "loads": [load.as_dict() for load in self.loads],
        }


def make_plan(
    tokens_per_step: Mapping[int, Estimate], costs: CostCurve, *, prompt_s_per_token: float = 0.0
) -> Plan:
    """Choose a draft length for every load.

    Args:
        tokens_per_step: by draft length, see `tokens_by_draft_length`; 0 is 1 by definition.
        costs: measured; draft lengths without a known number of tokens are left out.
        prompt_s_per_token: S, the time of a request's prompt over its output tokens, in which the
            other requests wait; 0 tells of decoding alone.
    """
    known = {0: Estimate(1.0, 1.0, 1.0, _num_samples(tokens_per_step)), **tokens_per_step}
    usable = [k for k in costs.draft_lengths if k in known]
    loads = tuple(
        _plan_load(c, usable, known, costs, (c - 1) * prompt_s_per_token)
        for c in costs.concurrencies
    )
    by_load = _bands(usable, known, costs)
    off = [first for first, k in by_load if k == 0]
    is_off_at_the_end = by_load[-1][1] == 0
    return Plan(loads, by_load, off[-1] if is_off_at_the_end else None, costs.concurrencies[-1])


def tokens_by_draft_length(
    steps_by_accepted: Sequence[Sequence[int]], largest: int
) -> dict[int, Estimate]:
    """k -> tokens a step would have given with chains of k, for 0 … largest.

    Args:
        steps_by_accepted: for each request, how many of its steps accepted 0, 1, 2, … tokens of a
            chain of `largest`; requests are the independent samples.
    """
    requests = [counts for counts in steps_by_accepted if sum(counts)]
    return {
        k: ratio_of_sums(
            [
                (sum(n * (1 + min(accepted, k)) for accepted, n in enumerate(counts)), sum(counts))
                for counts in requests
            ]
        )
        for k in range(largest + 1)
        if requests
    }


def best_tree(rank_rates: Sequence[Sequence[float]], num_nodes: int) -> list[tuple[int, ...]]:
    """The rank paths of the drafted tree with the most expected tokens under a node budget.

    Greedy by value: of all nodes that may be added the likeliest to be accepted comes next. With
    values that multiply along a path and fall with the rank no other choice of as many nodes is
    better (Medusa, arXiv:2401.10774, section 2.3.3; Sequoia, arXiv:2402.12374, section 3.1, which
    also bounds the depth; EAGLE-2, arXiv:2406.16858, ranks the same way with the draft's own
    confidence).

    Args:
        rank_rates: see `neuron_spec.theory.tree_values`; sorted by rank where they are not.
        num_nodes: drafted tokens, at most; fewer if no others have any chance.
    """
    rates = [sorted(row, reverse=True) for row in rank_rates]
    paths: list[tuple[int, ...]] = []
    waiting: list[tuple[float, int, tuple[int, ...]]] = [(-rank_rate(rates, 0, 0), 1, (0,))]
    while waiting and len(paths) < num_nodes:
        value, depth, path = heapq.heappop(waiting)
        if value == 0:
            break
        paths.append(path)
        own = rank_rate(rates, depth - 1, path[-1])
        sibling = rank_rate(rates, depth - 1, path[-1] + 1)
        heapq.heappush(waiting, (value / own * sibling, depth, (*path[:-1], path[-1] + 1)))
        child = rank_rate(rates, depth, 0)
        heapq.heappush(waiting, (value * child, depth + 1, (*path, 0)))
    return sorted(paths, key=lambda path: (len(path), path))


def _num_samples(tokens_per_step: Mapping[int, Estimate]) -> int:
    return max((estimate.num_samples for estimate in tokens_per_step.values()), default=0)


def _plan_load(
    concurrency: int,
    usable: Sequence[int],
    known: Mapping[int, Estimate],
    costs: CostCurve,
    waiting_s: float,
) -> LoadPlan:
    steps = {k: cost.step_s for k, cost in costs.at(concurrency).items()}
    plain = steps[0]
    options = tuple(
        Option(
            k, known[k], steps[k], steps[k].value / plain.value,
            _speed_up(known[k], steps[k], plain, waiting_s) if k else _even(known[k].num_samples),
        )
        for k in usable
    )  # fmt: skip
    chosen = _shortest_of_the_best(
        {k: known[k].value * plain.value / steps[k].value for k in usable}
    )
    return LoadPlan(concurrency, options, next(o for o in options if o.num_draft_tokens == chosen))


def _even(num_samples: int) -> Estimate:
    return Estimate(1.0, 1.0, 1.0, num_samples)


def _speed_up(tokens: Estimate, step: Estimate, plain: Estimate, waiting_s: float) -> Estimate:
    """(T(0) + w) / (T(k) / E + w); the relative errors of the three are independent and add up as
    squares, each by its part in the time."""
    decoding_s = step.value / tokens.value
    value = (plain.value + waiting_s) / (decoding_s + waiting_s)
    parts = (decoding_s / (decoding_s + waiting_s), plain.value / (plain.value + waiting_s))
    errors = [
        part * error
        for estimate, part in ((tokens, parts[0]), (step, parts[0]), (plain, parts[1]))
        if (error := estimate.relative_error) is not None
    ]
    if len(errors) < 3:
        return Estimate(value, None, None, tokens.num_samples)
    half = normal_quantile(CONFIDENCE) * math.hypot(*errors)
    return Estimate(
        value, value * math.exp(-half), value * math.exp(half), tokens.num_samples, CONFIDENCE
    )


def _shortest_of_the_best(speed_ups: Mapping[int, float]) -> int:
    """The shortest draft within `TOLERANCE` of the best; 0 has a speed-up of 1."""
    enough = max(speed_ups.values()) * (1 - TOLERANCE)
    return min(k for k, value in speed_ups.items() if value >= enough)


def _bands(
    usable: Sequence[int], known: Mapping[int, Estimate], costs: CostCurve
) -> tuple[tuple[int, int], ...]:
    """The best k at 1, 2, … running requests, as bands; costs between loads are interpolated."""
    bands: list[tuple[int, int]] = []
    for concurrency in range(1, costs.concurrencies[-1] + 1):
        plain = costs.step_s(concurrency, 0)
        best = _shortest_of_the_best(
            {k: known[k].value * plain / costs.step_s(concurrency, k) for k in usable}
        )
        if not bands or bands[-1][1] != best:
            bands.append((concurrency, best))
    return tuple(bands)
