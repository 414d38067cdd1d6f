"""EAGLE chain drafting, for v1 and EAGLE-3 heads.

Sources: arXiv:2401.15077, arXiv:2503.01840; NxDI `models/model_base.py`,
`_eagle_token_gen_forward`.

The head predicts the target's next feature from pairs: the feature of position t with the embedding
of the token at t + 1. The feature is the target's hidden state after its final norm in v1, and
three layers' hidden states side by side in EAGLE-3. Pair t sits at draft position t, one behind the
target. While drafting, the head's own output stands in for the feature; an EAGLE-3 head tells the
two apart by their width, so that nothing here differs.

Pairs built from true features replace the head's own guesses in the draft cache: here they wait
as "pending" and are run together with the next step's first proposal, which computes what NxDI's
extra draft pass after verification computes, in one pass fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Forward = Callable[[Tensor, Tensor, Sequence[int], int], Tensor]
"""(tokens [rows, n], features [rows, n, feature], start position of each row, first slot)
-> output features [rows, n, hidden]."""
Logits = Callable[[Tensor], Tensor]
"""hidden [..., hidden] -> logits [..., vocab]."""


@dataclass
class _Pending:
    """Pairs with true features that the draft cache does not hold yet."""

    start: int
    """Draft position of the first pair."""
    tokens: Tensor
    """[n] ids; token i is the one after feature i."""
    features: Tensor
    """[n, feature]"""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def split(self, count: int) -> tuple[_Pending, _Pending]:
        """The first `count` pairs and the rest."""
        head = _Pending(self.start, self.tokens[:count], self.features[:count])
        return head, _Pending(self.start + count, self.tokens[count:], self.features[count:])

    def extended(self, tokens: Tensor, features: Tensor) -> _Pending:
        return _Pending(
            self.start, torch.cat([self.tokens, tokens]), torch.cat([self.features, features])
        )


class EagleDrafter:
    """Proposes greedy chains for a batch of slots that advance at their own pace."""

    def __init__(self, forward: Forward, logits: Logits) -> None:
        self._forward, self._logits = forward, logits
        self._pending: dict[int, _Pending] = {}

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """Start a sequence.

        Args:
            tokens: [n] ids at target positions 1 … n: the prompt without its first token, then
                the first new token.
            features: [n, feature] the target's features at positions 0 … n-1.
        """
        self._pending[slot] = self._caught_up(slot, _Pending(0, tokens, features))

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """Take in what a step committed.

        Args:
            tokens: [n] committed ids.
            features: [n, feature] the target's features one position before each of them.
        """
        self._pending[slot] = self._pending[slot].extended(tokens, features)

    def release(self, slot: int) -> None:
        """Forget a sequence."""
        self._pending.pop(slot, None)

    def propose(self, num_rows: int, num_draft_tokens: int) -> Tensor:
        """Draft chains for slots 0 … num_rows-1; rows of free slots hold anything.

        Returns:
            [num_rows, k] ids, k = `num_draft_tokens`.
        """
        for slot, pending in self._pending.items():
            if len(pending.tokens) > num_draft_tokens + 1:  # speculation was off for a while
                self._pending[slot] = self._caught_up(slot, pending)
        feature, ends = self._run_pending(num_rows)
        proposals = [self._logits(feature).argmax(dim=-1)]  # each [rows, 1]
        for depth in range(1, num_draft_tokens):
            starts = [end + depth - 1 for end in ends]
            feature = self._forward(proposals[-1], feature, starts, 0)
            proposals.append(self._logits(feature).argmax(dim=-1))
        return torch.cat(proposals, dim=1)

    def _caught_up(self, slot: int, pending: _Pending) -> _Pending:
        """Run all pairs but the last, which the next proposal starts from."""
        run, rest = pending.split(len(pending.tokens) - 1)
        if len(run.tokens):
            self._forward(run.tokens[None], run.features[None], [run.start], slot)
        return rest

    def _run_pending(self, num_rows: int) -> tuple[Tensor, list[int]]:
        """Output feature of every row's last pending pair [rows, 1, hidden], and where rows end.

        Rows with fewer pairs are padded at the end; the padding lands on positions that later
        passes overwrite before anything attends to them.
        """
        some = next(iter(self._pending.values()))
        rows = [self._pending.get(slot) for slot in range(num_rows)]
        lengths = [len(row.tokens) if row else 1 for row in rows]
        width = max(lengths)
        tokens = some.tokens.new_zeros(num_rows, width)
        features = some.features.new_zeros(num_rows, width, some.features.shape[-1])
        for index, row in enumerate(rows):
            if row:
                tokens[index, : lengths[index]] = row.tokens
                features[index, : lengths[index]] = row.features
        starts = [row.start if row else 0 for row in rows]
        output = self._forward(tokens, features, starts, 0)  # [rows, width, hidden]
        last = torch.tensor(lengths, device=output.device) - 1
        feature = output[torch.arange(num_rows, device=output.device), last].unsqueeze(1)
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        for slot, row in enumerate(rows):
            if row:
                self._pending[slot] = row.split(len(row.tokens))[1]
        return feature, ends
