"""Drafting with a model that has a KV cache: proposals grow below the last committed token.

What was committed since the last proposal waits as "pending" and is run together with the next
step's first proposal. Pending inputs replace the draft's guesses in its cache, so the cache always
equals that of a draft that has seen the committed text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from neuron_spec.drafters.base import Choose, Proposal, choose_best
from neuron_spec.drafters.growth import Best, Forward, Grow, Logits, Root, grow_chain
from neuron_spec.sampling import best_ids


@dataclass
class _Pending:
    """Inputs that the draft cache does not hold yet."""

    start: int
    """Draft position of the first one."""
    tokens: Tensor
    """[n] ids"""
    features: Tensor
    """[n, feature]"""

    @property
    def end(self) -> int:
        return self.start + self.tokens.shape[0]

    def filling(self) -> _Pending:
        """What a free row runs along with ones like this."""
        tokens, features = self.tokens, self.features
        return _Pending(0, tokens.new_zeros(1), features.new_zeros(1, features.shape[1]))

    def split(self, count: int) -> tuple[_Pending, _Pending]:
        """The first `count` inputs and the rest."""
        head = _Pending(self.start, self.tokens[:count], self.features[:count])
        return head, _Pending(self.start + count, self.tokens[count:], self.features[count:])

    def extended(self, tokens: Tensor, features: Tensor) -> _Pending:
        if self.tokens.shape[0] == 0:
            return _Pending(self.start, tokens, features)
        return _Pending(
            self.start, torch.cat([self.tokens, tokens]), torch.cat([self.features, features])
        )


class ChainDrafter:
    """Drafts with a language model of its own (arXiv:2211.17192): token t sits at position t."""

    def __init__(
        self,
        forward: Forward,
        logits: Logits,
        grow: Grow = grow_chain,
        *,
        best: Best | None = None,
    ) -> None:
        """`best`: what `best_ids` makes of the logits, where it can be had without them."""
        self._forward, self._logits, self._grow = forward, logits, grow
        self._best = best or (lambda hidden: best_ids(logits(hidden)))
        self._pending: dict[int, _Pending] = {}

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`; a language model needs no features."""
        self._start(slot, tokens, features.new_zeros(len(tokens), 0))

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        self._pending[slot] = self._pending[slot].extended(tokens, features[:, :0])

    def release(self, slot: int) -> None:
        """See `Drafter.release`."""
        self._pending.pop(slot, None)

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        """See `Drafter.propose`; proposals are always whole."""
        for slot, pending in self._pending.items():
            if pending.tokens.shape[0] > num_draft_tokens + 1:  # speculation was off for a while
                self._pending[slot] = self._caught_up(slot, pending)
        feature, ends = self._run_pending(num_rows)
        root = Root(self._forward, self._logits, self._best, feature, ends)
        return self._grow(root, num_draft_tokens, choose)

    def _start(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        self._pending[slot] = self._caught_up(slot, _Pending(0, tokens, features))

    def _caught_up(self, slot: int, pending: _Pending) -> _Pending:
        """Run all inputs but the last, which the next proposal starts from."""
        run, rest = pending.split(len(pending.tokens) - 1)
        if len(run.tokens):
            self._forward(run.tokens[None], run.features[None], [run.start], slot)
        return rest

    def _run_pending(self, num_rows: int) -> tuple[Tensor, list[int]]:
        """Output of every row's last pending input [rows, 1, hidden], and where rows end.

        Rows with fewer inputs are padded at the end; the padding lands on positions that later
        passes overwrite before anything attends to them.
        """
        some = next(iter(self._pending.values()))
        rows = [self._pending.get(slot) or some.filling() for slot in range(num_rows)]
        starts, ends = [row.start for row in rows], [row.end for row in rows]
        tokens, features = _side_by_side([(row.tokens, row.features) for row in rows])
        output = self._forward(tokens, features, starts, 0)  # [rows, width, hidden]
        feature = _at_ends(output, [end - start for start, end in zip(starts, ends, strict=True)])
        nothing = some.tokens[:0], some.features[:0]
        for slot, pending in self._pending.items():
            if slot < num_rows:
                self._pending[slot] = _Pending(pending.end, *nothing)
        return feature, ends


def _side_by_side(rows: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Pairs of [n, …], padded at the end -> pair of [rows, n, …]; one row as it is."""
    if len(rows) == 1:
        tokens, features = rows[0]
        return tokens[None], features[None]
    tokens, features = (
        pad_sequence(list(part), batch_first=True) for part in zip(*rows, strict=True)
    )
    return tokens, features


def _at_ends(output: Tensor, lengths: Sequence[int]) -> Tensor:
    """[rows, width, hidden] -> [rows, 1, hidden] at the last place of every row."""
    if len(lengths) == 1:
        return output[:, -1:]
    last = torch.tensor(lengths, device=output.device) - 1
    return output[torch.arange(len(lengths), device=output.device), last].unsqueeze(1)
