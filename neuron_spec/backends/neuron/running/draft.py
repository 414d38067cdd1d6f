"""Drafting with a model that NxDI compiled alone: one token a call, of every running slot.

Source of the loop that this replaces: `utils/hf_adapter.py`, `_standard_assisted_decoding`, whose
draft encodes the prompt in the first step, so that its proposals are compared one place late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuron_spec.backends.neuron.running.host import LogitsModel
from neuron_spec.drafters import Choose, Proposal, choose_best


@dataclass
class _Row:
    """A sequence, and what the draft's cache holds of it.

    Attributes:
        tokens: prompt and output.
        num_held: so many leading tokens are in the cache; behind them stand rejected drafts.
        drafts: proposals that were run after `tokens` was last complete.
    """

    tokens: list[int]
    num_held: int = 0
    drafts: tuple[int, ...] = ()

    @property
    def missing(self) -> list[int]:
        """Tokens to be run before the next proposal; the last committed one always is."""
        return self.tokens[self.num_held :]

    def commit(self, tokens: Sequence[int]) -> None:
        """Of the drafts that were run, those that equal what was committed stay held."""
        matches = zip(self.drafts, tokens, strict=False)
        self.num_held += next(
            (place for place, (draft, token) in enumerate(matches) if draft != token),
            min(len(self.drafts), len(tokens)),
        )
        self.tokens += tokens
        self.drafts = ()


class DraftModelDrafter:
    """A `Drafter`. Entries of rejected drafts are overwritten by what was committed instead, and
    the last draft of a step that was wholly accepted is run before the next proposal."""

    def __init__(self, draft: LogitsModel) -> None:
        self._draft = draft
        self._rows: dict[int, _Row] = {}

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`; a language model needs no features. It runs when it first drafts,
        so that the first token does not wait for it."""
        self._rows[slot] = _Row(tokens.tolist())

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        self._rows[slot].commit(tokens.tolist())

    def release(self, slot: int) -> None:
        """See `Drafter.release`."""
        self._rows.pop(slot, None)

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        """See `Drafter.propose`; proposals are always whole chains."""
        slots = sorted(self._rows)
        self._encode(num_draft_tokens)
        logits = self._run_missing(slots)
        tokens: list[Tensor] = []
        probs: list[Tensor | None] = []
        for depth in range(num_draft_tokens):
            if depth:
                last = tokens[-1][slots].tolist()
                ends = [len(self._rows[slot].tokens) + depth - 1 for slot in slots]
                logits = self._draft.score(slots, last, ends)
            by_slot = logits.new_zeros(num_rows, 1, logits.shape[-1])
            by_slot[slots] = logits
            chosen, drawn_from = choose(by_slot)
            tokens.append(chosen)
            probs.append(drawn_from)
        for slot in slots:
            run = torch.cat(tokens[:-1], dim=1)[slot].tolist() if num_draft_tokens > 1 else []
            self._rows[slot].drafts = tuple(run)
        drawn = [p for p in probs if p is not None]
        return Proposal(torch.cat(tokens, dim=1), probs=torch.cat(drawn, dim=1) if drawn else None)

    def _encode(self, num_draft_tokens: int) -> None:
        """Rows that begin, and those that fell behind while nothing was drafted: one prompt costs
        less than a call a token, where there is a graph that is long enough."""
        longest = self._draft.device.longest_prompt
        for slot, row in self._rows.items():
            text = row.tokens[:-1]
            is_behind = len(row.missing) > num_draft_tokens + 1 and len(text) <= longest
            if is_behind or row.num_held == 0:
                self._draft.encode(slot, text[:longest])
                row.num_held = min(len(text), longest)

    def _run_missing(self, slots: Sequence[int]) -> Tensor:
        """Logits [rows, 1, vocab] after every row's last token.

        Rows that miss less than others run their first token again, which changes nothing.
        """
        rows = [self._rows[slot] for slot in slots]
        num_calls = max(len(row.missing) for row in rows)
        for call in range(num_calls, 0, -1):
            places = [max(len(row.tokens) - call, row.num_held) for row in rows]
            inputs = [[row.tokens[place]] for row, place in zip(rows, places, strict=True)]
            logits = self._draft.score(slots, inputs, places)
        for row in rows:
            row.num_held = len(row.tokens)
        return logits
