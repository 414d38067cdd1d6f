"""Level 1: the output of two systems, token by token; usually speculation off and on.

Greedy, or sampled with the same seed on both sides, which is what the rule `sample-match` promises.
At a divergence the target's own logits decide what it was, see `ties.py`: numerics, a near-tie, or
else a defect. After it the candidate is given the reference's prefix again, so that what follows is
compared too and one near-tie does not hide a later defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from neuron_spec.engine.session import Session
from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.equivalence.systems import Alternative, Ask, Reply, SessionSystem, System
from neuron_spec.equivalence.ties import (
    Divergence,
    Kind,
    Seeded,
    greedy_divergence,
    sampled_divergence,
)

# Largest distance of the two best logits that rounding may reorder, by dtype. Logits of language
# models lie within about ±32, where one unit in the last place is 4e-6 (float32), 0.016 (float16)
# and 0.125 (bfloat16); sums over the hidden size add a few more of them.
NEAR_TIE_MARGINS = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}

MAX_DIVERGENCES = 16
"""After so many in one prompt the rest is not compared: each costs a run of the candidate."""

MAX_TOKENS_BACK = 3
"""How many tokens before a differing character are looked at for the choice that led to it."""


@dataclass(frozen=True)
class Comparison:
    """One prompt, answered by both.

    Attributes:
        num_compared: output positions that were compared; fewer than the reference has if the
            prefix became too long to be given again, or after `MAX_DIVERGENCES`.
    """

    reference: Reply
    candidate: Reply
    divergences: tuple[Divergence, ...]
    num_compared: int

    @property
    def divergence(self) -> Divergence | None:
        """The first one."""
        return self.divergences[0] if self.divergences else None

    @property
    def is_identical(self) -> bool:
        """The same tokens."""
        return not self.divergences

    @property
    def num_defects(self) -> int:
        """Divergences that rounding does not explain."""
        return sum(divergence.kind == "defect" for divergence in self.divergences)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        acceptance = self.candidate.acceptance
        return {
            "num_prompt_tokens": self.reference.num_prompt_tokens,
            "num_output_tokens": self.reference.num_tokens,
            "num_compared": self.num_compared,
            "identical": self.is_identical,
            "divergence": asdict(self.divergence) if self.divergence else None,
            "divergences": [asdict(divergence) for divergence in self.divergences],
            "acceptance": acceptance.as_dict() if acceptance else None,
        }


def compare_greedy(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    near_tie_margin: float,
    ignore_eos: bool = False,
) -> list[Comparison]:
    """Generate every prompt with speculation off and on and compare; see `compare_systems`."""
    return compare_systems(
        SessionSystem(session, speculate=False),
        SessionSystem(session, speculate=True),
        prompts,
        max_new_tokens=max_new_tokens,
        near_tie_margin=near_tie_margin,
        ignore_eos=ignore_eos,
    )


def compare_systems(
    reference: System,
    candidate: System,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    near_tie_margin: float,
    ignore_eos: bool = False,
    seeded: Seeded | None = None,
) -> list[Comparison]:
    """Have every prompt answered by both and compare.

    Args:
        near_tie_margin: see `NEAR_TIE_MARGINS`; in units of logits.
        seeded: sample, each prompt with a seed of its own from this one on, the same on both sides;
            None decodes greedily. Only systems of this process draw the same numbers.
    """
    options: dict[str, Any] = {"ignore_eos": True} if ignore_eos else {}
    asks = [Ask(prompt, max_new_tokens, options) for prompt in prompts]
    if seeded is not None:
        options["temperature"] = seeded.temperature
        asks = [replace(ask, seed=seeded.seed + number) for number, ask in enumerate(asks)]
    pair = _Pair(reference, candidate, near_tie_margin)
    replies = zip(asks, reference.reply(asks), candidate.reply(asks), strict=True)
    return [pair.compare(*each) for each in replies]


@dataclass(frozen=True)
class _Pair:
    """Two systems and what counts as a tie between them."""

    reference: System
    candidate: System
    near_tie_margin: float

    def compare(self, ask: Ask, reference: Reply, first: Reply) -> Comparison:
        """Find every divergence of one prompt, giving the reference's prefix again after each."""
        by_ids = reference.token_ids is not None and first.token_ids is not None
        length = len(reference.token_ids or ()) if by_ids else len(reference.text)
        divergences: list[Divergence] = []
        start, candidate = 0, first
        while (position := _first_difference(reference, candidate, start, by_ids)) is not None:
            find = self._by_ids if by_ids else self._by_text
            divergence, start = find(ask, reference, candidate, (start, position))
            divergences.append(divergence)
            again = self._next_ask(ask, reference, start, by_ids)
            if start >= length or again is None or len(divergences) == MAX_DIVERGENCES:
                return Comparison(reference, first, tuple(divergences), min(start, length))
            (candidate,) = self.candidate.reply([again])
        return Comparison(reference, first, tuple(divergences), length)

    def _by_ids(
        self, ask: Ask, reference: Reply, candidate: Reply, places: tuple[int, int]
    ) -> tuple[Divergence, int]:
        """The divergence, and the position after it."""
        start, position = places
        ids, other_ids = reference.token_ids or (), candidate.token_ids or ()
        own = ids[position] if position < len(ids) else None
        index = position - start
        other = other_ids[index] if index < len(other_ids) else None
        logits, num_prompt = None, 0
        if own is not None and other is not None and isinstance(self.reference, SessionSystem):
            prompt_ids = self.reference.session.tokenizer.encode(ask.prompt)
            num_prompt = len(prompt_ids)
            logits = self.reference.scores((*prompt_ids, *ids[:position]))
        if logits is None or own is None or other is None:
            return Divergence(position, own, other, None, None, "defect"), position + 1
        tokens, margin = (own, other), self.near_tie_margin
        temperature = ask.options.get("temperature", 0)
        if not temperature or ask.seed is None:
            found = greedy_divergence(position, tokens, logits, near_tie_margin=margin)
        else:
            drawn = (Seeded(temperature, ask.seed), num_prompt + position)
            found = sampled_divergence(position, tokens, logits, drawn, near_tie_margin=margin)
        return found, position + 1

    def _by_text(
        self, ask: Ask, reference: Reply, candidate: Reply, places: tuple[int, int]
    ) -> tuple[Divergence, int]:
        """The same where only text is common: a near-tie is another likely token's text."""
        start, position = places
        told = self.reference.alternatives(ask.prompt, reference, position)
        if told is None:
            own, other = reference.text[position:][:8], candidate.text[position - start :][:8]
            return Divergence(position, own, other, None, None, "defect"), position + 1
        offset, alternatives = told
        distance = None
        place: tuple[int, list[Alternative]] | None = told
        for _ in range(MAX_TOKENS_BACK):
            if place is None or place[0] < start:
                break
            distance = _nearest_other(reference.text, candidate.text, place, (start, position))
            if distance is not None:
                offset, alternatives = place
                break
            before = place[0] - 1
            if before < 0:
                break
            place = self.reference.alternatives(ask.prompt, reference, before)
        own_text = _token_at(reference.text, alternatives, offset)
        is_tie = distance is not None and distance <= self.near_tie_margin
        kind: Kind = "near-tie" if is_tie else "defect"
        distances = sorted(a.distance for a in alternatives)
        top2 = distances[1] if len(distances) > 1 else None
        other_text = candidate.text[max(0, offset - start) :][:8]
        divergence = Divergence(position, own_text, other_text, distance, top2, kind)
        return divergence, max(start + 1, offset + len(own_text))

    def _next_ask(self, ask: Ask, reference: Reply, start: int, by_ids: bool) -> Ask | None:
        """The prompt with the reference's output up to `start`; None if that is not possible."""
        tokenizer = getattr(getattr(self.candidate, "session", None), "tokenizer", None)
        if by_ids and tokenizer is not None:
            prefix = (reference.token_ids or ())[:start]
            prompt: Prompt = (*tokenizer.encode(ask.prompt), *prefix)
            longest = self.candidate.max_prompt_tokens
            if longest is not None and len(prompt) > longest:
                return None
            return Ask(prompt, ask.max_new_tokens - start, ask.options, ask.seed)
        if not isinstance(ask.prompt, str) or not reference.num_tokens:
            return None
        left = max(1, round(reference.num_tokens * (1 - start / max(1, len(reference.text)))))
        return Ask(ask.prompt + reference.text[:start], left, ask.options, ask.seed)


def _first_difference(reference: Reply, candidate: Reply, start: int, by_ids: bool) -> int | None:
    """Position from `start` on; the candidate's output begins there."""
    if by_ids:
        pairs = zip_longest((reference.token_ids or ())[start:], candidate.token_ids or ())
        return next((start + i for i, (off, on) in enumerate(pairs) if off != on), None)
    own, other = reference.text[start:], candidate.text
    if start:
        # Given text again the budget in tokens is a guess: the shorter one ends the comparison.
        own, other = own[: len(other)], other[: len(own)]
    characters = enumerate(zip_longest(own, other))
    return next((start + i for i, (off, on) in characters if off != on), None)


def _nearest_other(
    reference: str,
    candidate: str,
    place: tuple[int, list[Alternative]],
    range_: tuple[int, int],
) -> float | None:
    """How far below the best the token was with which the candidate went another way here.

    At a token before the one with the first differing character it has to reach beyond that: a
    token that begins like the reference's and goes on is chosen earlier than it shows. An empty
    text is the end of the output.
    """
    (offset, alternatives), (start, position) = place, range_
    own, rest = _token_at(reference, alternatives, offset), candidate[offset - start :]
    covers = offset + len(own) > position
    fitting = [
        a.distance
        for a in alternatives
        if a.text != own
        and (
            (rest.startswith(a.text) and (covers or offset + len(a.text) > position))
            if a.text
            else (not rest and offset == position)
        )
    ]
    return min(fitting, default=None)


def _token_at(text: str, alternatives: Sequence[Alternative], offset: int) -> str:
    """The likeliest alternative that the text goes on with: what greedy decoding took."""
    rest = text[offset:]
    fitting = [a for a in alternatives if (rest.startswith(a.text) if a.text else not rest)]
    return str(min(fitting, key=lambda a: a.distance).text) if fitting else rest[:1]
