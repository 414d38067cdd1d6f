"""What a step and a prompt take."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.bench.steps import measure_step_costs
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.session import Session
from neuron_spec.engine.tokenizer import Prompt
from step_costs.opening import DRAFT_LENGTH, Model
from step_costs.watching import MODEL_CALLS, Watch, watching

Figures = list[dict[str, Any]]
Argument = TypeVar("Argument")

PROMPT_TOKENS = 96
WARM_UP_STEPS = 3
STEPS_A_ROUND = 5
PREFIX_BYTES = 2 << 30


def overheads(model: Model, way: str, batches: Sequence[int], num_steps: int) -> Figures:
    """What a step of the decode loop takes beside forward passes and LM heads."""
    room = (WARM_UP_STEPS + num_steps + 1) * (DRAFT_LENGTH + 1)
    with watching(MODEL_CALLS) as models, watching(((ReferenceSpeculator, "step"),)) as step:
        spec = model.spec(
            way, batch_size=max(batches), length=PROMPT_TOKENS + room, prompt=PROMPT_TOKENS
        )
        session = model.session(spec)
        return [
            {
                "way": way,
                "batch": batch,
                **_overhead(session, model, (models, step), batch, num_steps),
            }
            for batch in batches
        ]


def _overhead(
    session: Session, model: Model, watches: tuple[Watch, Watch], batch: int, num_steps: int
) -> dict[str, float]:
    models, step = watches
    loop = started(session, [row.prompt for row in model.rows], batch)
    spans: list[tuple[float, float, float]] = []
    for _ in range(WARM_UP_STEPS + num_steps):
        models.reset()
        step.reset()
        begun = time.perf_counter()
        loop.advance()
        seconds = time.perf_counter() - begun
        spans.append((seconds, seconds - models.seconds, seconds - step.seconds))
    loop.close()
    whole, beyond, in_loop = zip(*spans[WARM_UP_STEPS:], strict=True)
    return {
        "step_ms": median_ms(whole),
        "beyond_models_ms": median_ms(beyond),
        "least_beyond_models_ms": 1000 * min(beyond),
        "in_loop_ms": median_ms(in_loop),
    }


def started(session: Session, prompts: Sequence[Prompt], batch: int) -> DecodeLoop:
    """A loop with so many requests past their prompts."""
    loop = session.loop()
    for index in range(batch):
        ids = session.tokenizer.encode(prompts[index % len(prompts)])[:PROMPT_TOKENS]
        loop.submit(session.request(ids, ignore_eos=True))
    num_begun = 0
    while num_begun < batch:
        num_begun += sum(getattr(event, "step", None) == 0 for event in loop.advance())
    return loop


def batch_costs(model: Model, batches: Sequence[int], num_turns: int) -> Figures:
    """A step against how many run."""
    spec = model.spec(
        "eagle", batch_size=max(batches), length=4 * PROMPT_TOKENS, prompt=PROMPT_TOKENS
    )
    curve = measure_step_costs(model.session(spec), model.rows, batches, num_turns=num_turns)
    figures = [
        {"batch": cost.concurrency, "k": cost.num_draft_tokens, "step_ms": 1000 * cost.step_s.value}
        for cost in curve.costs
        if cost.num_draft_tokens in (0, DRAFT_LENGTH)
    ]
    return with_ratios(figures, "batch")


def context_costs(model: Model, contexts: Sequence[int], num_rounds: int) -> Figures:
    """A step of one sequence against its length, which its last steps reach. A kept prefix makes
    all contexts of one prompt, so that they can take turns."""
    spec = model.spec("eagle", batch_size=1, length=max(contexts), prompt=max(contexts))
    speculator = model.session(spec).speculator
    assert isinstance(speculator, ReferenceSpeculator)
    speculator.cache_prefixes(PREFIX_BYTES)
    ids = random_ids(max(contexts), speculator.limits.vocab_size or 1)
    times: dict[tuple[int, int], list[float]] = {}
    for _ in range(num_rounds):
        for context in contexts:
            speculator.prefill(0, ids[: context - _ROUND_TOKENS])
            for turn in range(STEPS_A_ROUND + 1):
                for k in (0, DRAFT_LENGTH):
                    seconds = seconds_of(speculator.step, k)
                    if turn:
                        times.setdefault((context, k), []).append(seconds)
            speculator.release(0)
    figures = [
        {"context": context, "k": k, "step_ms": median_ms(values)}
        for (context, k), values in times.items()
    ]
    return with_ratios(figures, "context")


_ROUND_TOKENS = (STEPS_A_ROUND + 1) * (DRAFT_LENGTH + 2) + 1


def prefill_costs(model: Model, lengths: Sequence[int], num_repeats: int) -> Figures:
    """A prompt against the model of transformers on the same weights, in turn."""
    spec = model.spec("plain", batch_size=1, length=max(lengths) + 1, prompt=max(lengths))
    speculator = model.session(spec).speculator
    run_peer = peer(model.prepared(spec).target, model.dtype)

    def run_ours(ids: Sequence[int]) -> None:
        speculator.prefill(0, ids)
        speculator.release(0)

    figures = []
    for length in lengths:
        ids = random_ids(length, speculator.limits.vocab_size or 1)
        pairs = [
            (seconds_of(run_ours, ids), seconds_of(run_peer, ids)) for _ in range(num_repeats + 1)
        ][1:]
        ours, theirs = (median_ms(side) for side in zip(*pairs, strict=True))
        figures.append(
            {"tokens": length, "ours_ms": ours, "transformers_ms": theirs, "ratio": ours / theirs}
        )
    return figures


def peer(directory: Path, dtype: str) -> Callable[[Sequence[int]], None]:
    """One pass of transformers' model, logits of the last position alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()

    def run(ids: Sequence[int]) -> None:
        with torch.inference_mode():
            model(torch.tensor([list(ids)]), use_cache=True, logits_to_keep=1)

    return run


def with_ratios(figures: Figures, by: str) -> Figures:
    """Each with its ratio to the first of the same k."""
    firsts: dict[int, float] = {}
    return [
        {**each, "ratio": each["step_ms"] / firsts.setdefault(each["k"], each["step_ms"])}
        for each in sorted(figures, key=lambda each: (each["k"], each[by]))
    ]


def median_ms(seconds: Sequence[float]) -> float:
    """In milliseconds."""
    return 1000 * statistics.median(seconds)


def seconds_of(call: Callable[[Argument], Any], argument: Argument) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    call(argument)
    return time.perf_counter() - begun


def random_ids(count: int, vocab_size: int) -> list[int]:
    """The same in every run; a shorter list is the beginning of a longer one."""
    chance = random.Random(1)
    return [chance.randrange(vocab_size) for _ in range(count)]
