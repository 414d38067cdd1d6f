"""From seconds to rates, ratios and a verdict: pure functions over what the workers told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from statistics import median
from typing import Any

from .engines import OURS, PLAIN, Engine

ALL = -1
"""In place of a prompt's number: all prompts together."""


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and the largest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        known = list(values)
        return cls(median(known), min(known), max(known))

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass
class Measured:
    """What one engine did.

    Attributes:
        seconds: of every repetition, of every prompt in it.
        tokens: the output of every prompt, in the first repetition; what goes beyond the number
            that was asked for counts in the rate, and is not compared.
        num_changed: outputs of later repetitions that differ from that.
        num_steps: target passes of every prompt, where the engine tells them.
        idle_cpu_s: processor time it used while others worked.
        version: of the program.
    """

    engine: Engine
    version: str
    seconds: list[list[float]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    num_changed: int = 0
    num_steps: list[int | None] = field(default_factory=list)
    idle_cpu_s: float = 0.0

    def add(self, prompt: int, answer: Mapping[str, Any]) -> None:
        """One answer; prompts come in order, repetition by repetition."""
        if prompt == 0:
            self.seconds.append([])
        self.seconds[-1].append(answer["seconds"])
        self.idle_cpu_s += answer["idle_cpu_s"]
        if len(self.seconds) == 1:
            self.tokens.append(answer["tokens"])
            self.num_steps.append(answer.get("num_steps"))
        else:
            self.num_changed += answer["tokens"] != self.tokens[prompt]

    def seconds_of(self, prompt: int) -> list[float]:
        """Of every repetition: of one prompt, or of `ALL`."""
        return [sum(times) if prompt == ALL else times[prompt] for times in self.seconds]

    def rate(self, prompt: int) -> Spread:
        """Tokens a second, the prompt's processing within the time."""
        outputs = self.tokens if prompt == ALL else [self.tokens[prompt]]
        num_tokens = sum(map(len, outputs))
        return Spread.of(num_tokens / seconds for seconds in self.seconds_of(prompt))

    def is_like(self, plain: Measured, prompt: int) -> bool:
        """Whether its output is that of `plain`, in every repetition."""
        places = range(len(plain.tokens)) if prompt == ALL else [prompt]
        differs = any(self.differs_at(plain, place) is not None for place in places)
        return not (differs or self.num_changed or plain.num_changed)

    def differs_at(self, plain: Measured, prompt: int) -> int | None:
        """The first token of a prompt's output that is not that of `plain`; None if there is none.

        What goes beyond the end of `plain`, which makes as many as it is asked for, is left out.
        """
        wanted = plain.tokens[prompt]
        return first_difference(self.tokens[prompt][: len(wanted)], wanted)


Results = Mapping[str, Measured]
"""Engine's name -> what it did; only those that went through every repetition."""


def ratio(one: Measured, other: Measured, prompt: int) -> Spread:
    """How many times as fast one is as the other: of what they took in the same repetition."""
    pairs = zip(one.seconds_of(prompt), other.seconds_of(prompt), strict=True)
    return Spread.of(theirs / ours for ours, theirs in pairs)


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """The first place where two outputs differ, or None."""
    pairs = enumerate(zip_longest(tokens, others))
    return next((place for place, (a, b) in pairs if a != b), None)


def best(candidates: Iterable[Measured], prompt: int) -> Measured:
    """The fastest by its median."""
    return max(candidates, key=lambda measured: measured.rate(prompt).median)


def lossless_of_ours(results: Results, prompt: int) -> list[Measured]:
    """Ours whose output was plain decoding's own; plain decoding is always one."""
    plain = results[PLAIN]
    return [
        measured
        for measured in results.values()
        if measured.engine.family == OURS and (measured is plain or measured.is_like(plain, prompt))
    ]


def peers_of(results: Results) -> dict[str, list[Measured]]:
    """Program -> its configurations."""
    families: dict[str, list[Measured]] = {}
    for measured in results.values():
        if measured.engine.family != OURS:
            families.setdefault(measured.engine.family, []).append(measured)
    return families


def like_against_like(results: Results) -> list[tuple[Measured, Measured]]:
    """Every configuration of a peer, beside ours that does the same."""
    return [
        (results[f"{OURS} {measured.engine.like}"], measured)
        for measured in results.values()
        if measured.engine.family != OURS and f"{OURS} {measured.engine.like}" in results
    ]


def verdict(results: Results, prompt: int) -> dict[str, Any]:
    """Our best lossless configuration against our plain decoding and every peer's best one.

    A peer's best one counts whether or not its output is that of its own plain decoding.
    """
    plain, ours = results[PLAIN], best(lossless_of_ours(results, prompt), prompt)
    peers = {family: best(found, prompt) for family, found in peers_of(results).items()}
    return {
        "ours": ours.engine.name,
        "tokens_per_s": ours.rate(prompt).as_dict(),
        "against_plain": ratio(ours, plain, prompt).as_dict(),
        "peers": {
            family: {
                "best": peer.engine.name,
                "tokens_per_s": peer.rate(prompt).as_dict(),
                "ratio": ratio(ours, peer, prompt).as_dict(),
            }
            for family, peer in peers.items()
        },
    }
