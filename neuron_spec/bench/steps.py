"""The cost of a verification step: over 1 … k + 1 positions, with 1 … c requests running.

All draft lengths run in turn, step by step, on the same sequences, which are real text of the
workload. What is timed is the step itself; the loop around it is in the figures of `load.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from neuron_spec.backends.base import StepPhases
from neuron_spec.bench.load import NO_OFF, NO_OFF_MEND, check_concurrencies
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.engine.session import Session
from neuron_spec.errors import UserError
from neuron_spec.metrics.costs import CostCurve, StepCost
from neuron_spec.metrics.estimates import quantile

WARM_UP_TURNS = 2


def measure_step_costs(
    session: Session,
    rows: Sequence[WorkloadRow],
    concurrencies: Sequence[int],
    *,
    off: Session | None = None,
    num_turns: int = 20,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> CostCurve:
    """Time `num_turns` steps of every draft length 0 … k at every concurrency; medians. Of an
    artifact whose steps always take as long, only k, and 0 on the other.

    Args:
        off: of the target alone, which has the steps without drafts then.

    Raises:
        UserError: more requests at a time than an artifact holds, or no steps without drafts.
    """
    for each in (session, *([off] if off else [])):
        check_concurrencies(each, concurrencies)
    speculators = speculators_of(session, off)
    prompts = [session.tokenizer.encode(row.prompt) for row in rows]
    costs: list[StepCost] = []
    for place, concurrency in enumerate(concurrencies):
        progress("step costs", place, len(concurrencies))
        costs += _at(speculators, prompts, concurrency, num_turns)
    progress("step costs", len(concurrencies), len(concurrencies))
    return CostCurve(tuple(costs))


def speculators_of(session: Session, off: Session | None) -> dict[int, Any]:
    """Draft length -> what takes a step with it.

    Raises:
        UserError: an artifact whose steps always take as long, alone.
    """
    own = session.speculator
    longest = own.limits.num_draft_tokens
    if own.limits.always_drafts and off is None:
        raise UserError(f"no step without drafts can be timed: {NO_OFF}", mend=NO_OFF_MEND)
    first = longest if own.limits.always_drafts else 1
    return {
        0: own if off is None else off.speculator,
        **dict.fromkeys(range(first, longest + 1), own),
    }


def _at(
    speculators: Mapping[int, Any],
    prompts: Sequence[Sequence[int]],
    concurrency: int,
    num_turns: int,
) -> list[StepCost]:
    times: dict[int, list[float]] = {k: [] for k in speculators}
    phases: dict[int, list[StepPhases]] = {k: [] for k in speculators}
    with ExitStack() as stack:
        running = {
            id(each): stack.enter_context(_sequences(each, prompts, concurrency))
            for each in {id(each): each for each in speculators.values()}.values()
        }
        for turn in range(WARM_UP_TURNS + num_turns):
            for k, speculator in speculators.items():
                sequences = running[id(speculator)]
                sequences.make_room(k + 1)
                start = time.perf_counter()
                results = speculator.step(k)
                seconds = time.perf_counter() - start
                sequences.observe(results)
                if turn >= WARM_UP_TURNS:
                    times[k].append(seconds)
                    if (told := getattr(speculator, "phases", None)) is not None:
                        phases[k].append(told)
    return [_cost(concurrency, k, times[k], phases[k]) for k in speculators]


@contextmanager
def _sequences(
    speculator: Any, prompts: Sequence[Sequence[int]], concurrency: int
) -> Iterator[_Sequences]:
    sequences = _Sequences(speculator, prompts, concurrency)
    speculator.tells_phases = True  # a plain attribute to backends that have no phases
    try:
        yield sequences
    finally:
        speculator.tells_phases = False
        sequences.close()


def _cost(
    concurrency: int, k: int, times: Sequence[float], phases: Sequence[StepPhases]
) -> StepCost:
    draft = quantile([phase.draft_s for phase in phases], 0.5) if phases else None
    verify = quantile([phase.verify_s for phase in phases], 0.5) if phases else None
    return StepCost(concurrency, k, quantile(times, 0.5), draft, verify)


class _Sequences:
    """Running sequences that begin anew where the next step would not fit."""

    def __init__(self, speculator: Any, prompts: Sequence[Sequence[int]], concurrency: int) -> None:
        self._speculator, self._prompts = speculator, prompts
        self._lengths: dict[int, int] = {}
        for slot in range(concurrency):
            self._begin(slot)

    def make_room(self, num_tokens: int) -> None:
        longest = self._speculator.limits.max_total_tokens
        for slot, length in list(self._lengths.items()):
            if length + num_tokens > longest:
                self._speculator.release(slot)
                self._begin(slot)

    def observe(self, results: Sequence[Any]) -> None:
        for result in results:
            self._lengths[result.slot] += len(result.tokens)

    def close(self) -> None:
        for slot in self._lengths:
            self._speculator.release(slot)

    def _begin(self, slot: int) -> None:
        prompt = self._prompts[slot % len(self._prompts)]
        limits = self._speculator.limits
        # A prompt that fills everything is cut: what is timed is the step, not the text.
        room = limits.max_total_tokens - limits.num_draft_tokens - 2
        prompt = prompt[: max(1, min(room, limits.max_prompt_tokens))]
        self._lengths[slot] = len(prompt) + 1
        self._speculator.prefill(slot, prompt)
