"""How the tokens of a drafted chain are chosen: by every row's options, numbers and grammar."""

from __future__ import annotations

import torch
from torch import Tensor

from neuron_spec.backends.decisions.history import History, Rows
from neuron_spec.grammars import allowed_after
from neuron_spec.rules.uniforms import DRAFT_STREAM, uniform_at
from neuron_spec.sampling import best_ids, probabilities, sample
from neuron_spec.sampling_params import SamplingParams


class Draws:
    """A `Choose` for one step: a chain's tokens, one depth a call.

    A row with a grammar drafts what it allows, so that no draft is lost to it. The distributions
    are those after that mask: what the tokens were drawn from, as the rules need it.
    """

    def __init__(self, rows: Rows, *, draws: bool) -> None:
        """`draws`: tokens are drawn; otherwise the best are taken."""
        self._rows, self._draws = rows, draws
        self._has_grammar = any(row is not None and row.matcher is not None for row in rows)
        self._chosen: list[list[int]] = []  # by depth and row, where a grammar asks
        self._depth = 0

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `Choose`."""
        own = logits[:, 0]
        if self._has_grammar:
            pairs = zip(range(len(own)), own, strict=True)
            own = torch.stack([self._masked(place, row) for place, row in pairs])
        tokens, probs = self._drawn(own) if self._draws else (best_ids(own), None)
        if self._has_grammar:
            self._chosen.append(tokens.tolist())
        self._depth += 1
        return tokens[:, None], None if probs is None else probs[:, None]

    def _drawn(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        pairs = zip(self._rows, logits, strict=True)
        probs = torch.stack([probabilities(own, _params(row)) for row, own in pairs])
        seeds = torch.tensor([row.seed if row else 0 for row in self._rows])
        positions = torch.tensor([row.position + self._depth if row else 0 for row in self._rows])
        uniforms = uniform_at(seeds, positions, DRAFT_STREAM).to(probs.device)
        return sample(probs, uniforms), probs

    def _masked(self, place: int, logits: Tensor) -> Tensor:
        """Logits [vocab] without what the grammar forbids after what was drafted; as they are where
        it has nothing to say, or leaves this draft nothing."""
        row = self._rows[place]
        if row is None or row.matcher is None or not row.decoding.speculate:
            return logits
        allowed = allowed_after(row.matcher, [chosen[place] for chosen in self._chosen])
        if allowed is None or allowed.shape != logits.shape:  # a draft with a vocabulary of its own
            return logits
        masked = logits.masked_fill(~allowed.to(logits.device), -torch.inf)
        return masked if bool((masked > -torch.inf).any()) else logits


def _params(row: History | None) -> SamplingParams:
    return SamplingParams() if row is None else row.draft_params
