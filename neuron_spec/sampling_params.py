"""How a request wants its tokens chosen; `sampling.py` does it. Without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from neuron_spec.errors import RequestError, shown

_INT64 = 2**63
_OF_DRAWS = ("top_k", "top_p", "min_p", "seed")


@dataclass(frozen=True)
class SamplingParams:
    """How one request wants its tokens chosen; the defaults are greedy decoding.

    Attributes:
        temperature: 0 is greedy: the largest logit, lowest id on ties.
        top_k: how many of the likeliest ids stay; 0 or -1 for all.
        top_p: the likeliest ids that together reach this probability stay; 1 for all.
        min_p: ids below this fraction of the likeliest id's probability go; 0 for none.
        repetition_penalty: above 0; 1 for none.
        presence_penalty: -2 … 2, as in the OpenAI API; 0 for none.
        frequency_penalty: -2 … 2, as in the OpenAI API; 0 for none.
        logit_bias: token id -> -100 … 100, added to its logit.
        min_tokens: output tokens before which no end-of-sequence id may come.
        seed: of the request's random numbers; None leaves the choice to the session.

    Raises:
        RequestError: a value out of range; `field` names it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        self._check("temperature", _is_number(self.temperature, 0), "0 or more")
        self._check("top_k", _is_integer(self.top_k, -1), "0 or -1 for all ids, or how many")
        above_zero = _is_number(self.top_p, 0, 1) and self.top_p > 0
        self._check("top_p", above_zero, "above 0 and at most 1")
        self._check("min_p", _is_number(self.min_p, 0, 1), "0 … 1")
        penalty = self.repetition_penalty
        self._check("repetition_penalty", _is_number(penalty, 0) and penalty > 0, "above 0")
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(name, _is_number(getattr(self, name), -2, 2), "-2 … 2")
        self._check("logit_bias", _is_bias(self.logit_bias), "token ids with -100 … 100 each")
        self._check("min_tokens", _is_integer(self.min_tokens, 0), "0 or more")
        fits = self.seed is None or _is_integer(self.seed, -_INT64) and self.seed < _INT64
        self._check("seed", fits, "an integer of 64 bits, or none")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken and no random number is needed."""
        return self.temperature == 0

    @property
    def in_effect(self) -> tuple[str, ...]:
        """Options that change what is chosen. The cuts of a distribution and the seed do not where
        the likeliest token is taken anyway."""
        default = SamplingParams()
        idle = _OF_DRAWS if self.is_greedy else ()
        return tuple(
            field.name
            for field in fields(self)
            if field.name not in idle and getattr(self, field.name) != getattr(default, field.name)
        )

    def _check(self, name: str, is_right: bool, expected: str) -> None:
        if not is_right:
            raise RequestError(
                "out of range", field=name, found=shown(getattr(self, name)), expected=expected
            )


def _is_number(value: Any, low: float, high: float = math.inf) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and low <= value <= high
    )


def _is_integer(value: Any, low: int) -> bool:
    return type(value) is int and value >= low


def _is_bias(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _is_integer(token, 0) and _is_number(bias, -100, 100) for token, bias in value.items()
    )
