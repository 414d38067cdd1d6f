"""Level 1: greedy output with speculation on and off, token by token.

At the first divergence the target's own logits decide what it was. Two tokens that are both closer
to the best one than rounding can tell apart are a near-tie: numerics, not an error. Anything else
is a defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from neuron_spec.engine.session import Generation, Session
from neuron_spec.engine.tokenizer import Prompt

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["near-tie", "defect"]

# Largest distance of the two best logits that rounding may reorder, by dtype. Logits of language
# models lie within about ±32, where one unit in the last place is 4e-6 (float32), 0.016 (float16)
# and 0.125 (bfloat16); sums over the hidden size add a few more of them.
NEAR_TIE_MARGINS = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}


@dataclass(frozen=True)
class Divergence:
    """The first output position at which on and off differ.

    Attributes:
        margin: logit of the plain token minus logit of the other one, by a fresh prefill of the
            common prefix; None where the backend gives no logits or one output simply ended.
        top2_margin: distance of the two best logits there.
    """

    position: int
    plain_token: int | None
    speculative_token: int | None
    margin: float | None
    top2_margin: float | None
    kind: Kind


@dataclass(frozen=True)
class Comparison:
    """One prompt, generated both ways."""

    plain: Generation
    speculative: Generation
    divergence: Divergence | None

    @property
    def is_identical(self) -> bool:
        """The same tokens."""
        return self.divergence is None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "num_prompt_tokens": self.plain.num_prompt_tokens,
            "num_output_tokens": len(self.plain.token_ids),
            "identical": self.is_identical,
            "divergence": asdict(self.divergence) if self.divergence else None,
            "acceptance": self.speculative.acceptance.as_dict(),
        }


def compare_greedy(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    near_tie_margin: float,
    ignore_eos: bool = False,
) -> list[Comparison]:
    """Generate every prompt with speculation off and on and compare.

    Args:
        near_tie_margin: see `NEAR_TIE_MARGINS`; in units of logits.
    """
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
    plain = session.generate_many(prompts, speculate=False, **options)
    speculative = session.generate_many(prompts, speculate=True, **options)
    return [
        Comparison(off, on, find_divergence(session, prompt, (off, on), near_tie_margin))
        for prompt, off, on in zip(prompts, plain, speculative, strict=True)
    ]


def find_divergence(
    session: Session,
    prompt: Prompt,
    generations: tuple[Generation, Generation],
    near_tie_margin: float,
) -> Divergence | None:
    """Where (plain, speculative) first differ, explained; None if they do not."""
    pairs = list(zip_longest(*(generation.token_ids for generation in generations)))
    position = next((i for i, (off, on) in enumerate(pairs) if off != on), None)
    if position is None:
        return None
    off, on = pairs[position]
    if off is None or on is None:
        return Divergence(position, off, on, None, None, "defect")
    prefix = (*session.tokenizer.encode(prompt), *generations[0].token_ids[:position])
    logits = _next_logits(session, prefix)
    if logits is None:
        return Divergence(position, off, on, None, None, "defect")
    best, second = logits.topk(2).values.tolist()
    plain, other = float(logits[off]), float(logits[on])
    # Both near the best: two poor tokens may be close to each other without any rounding.
    kind: Kind = "near-tie" if best - min(plain, other) <= near_tie_margin else "defect"
    return Divergence(position, off, on, plain - other, best - second, kind)


def _next_logits(session: Session, prefix: Sequence[int]) -> Tensor | None:
    logits = session.speculator.prefill(0, prefix).logits
    session.speculator.release(0)
    return logits
