"""Exact greedy speculative decoding, counted on recorded greedy answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Acceptance:
    """Counts over greedy verification steps."""

    tokens: int = 0
    steps: int = 0
    reached: list[int] | None = None  # steps in which draft position j was judged
    accepted: list[int] | None = None  # steps in which it was accepted

    def add(self, other: Acceptance) -> None:
        """Adds another count to this one."""
        self.tokens += other.tokens
        self.steps += other.steps
        for mine in ("reached", "accepted"):
            old, new = getattr(self, mine), getattr(other, mine)
            merged = new if old is None else [a + b for a, b in zip(old, new, strict=True)]
            setattr(self, mine, merged)

    @property
    def length(self) -> float:
        """Tokens committed per verification step, the target's own token included."""
        return self.tokens / max(1, self.steps)

    def rates(self) -> list[float]:
        """Acceptance rate of each draft position among the steps that reached it."""
        pairs = zip(self.accepted or [], self.reached or [], strict=True)
        return [a / max(1, r) for a, r in pairs]


def walk(matches: Tensor) -> Acceptance:
    """Greedy speculation over one answer.

    matches bool [k, L]: whether draft step j at query position i equals the target's token. The
    token before query position 0 comes from the prompt; L tokens follow. Draft step j of the
    verification step at anchor i stands at query position i + j - 1.
    """
    k, length = matches.shape
    rows, count = matches.tolist(), Acceptance(reached=[0] * k, accepted=[0] * k)
    assert count.reached is not None and count.accepted is not None
    anchor = 0
    while anchor < length:
        accepted = 0
        while accepted < min(k, length - anchor):
            count.reached[accepted] += 1
            if not rows[accepted][anchor + accepted]:
                break
            count.accepted[accepted] += 1
            accepted += 1
        committed = min(accepted + 1, length - anchor)
        count.tokens, count.steps = count.tokens + committed, count.steps + 1
        anchor += committed
    return count


def best_tokens(states: Tensor, lm_head: Tensor, chunk: int = 256) -> Tensor:
    """Greedy tokens int64 [N] of states [N, H] under lm_head [V, H]."""
    parts = states.to(lm_head.dtype).split(chunk)
    return torch.cat([F.linear(part, lm_head).float().argmax(-1) for part in parts])
