"""Drafting with a language model that has another tokenizer than the target: only tokens that both
vocabularies have are proposed.

Source: token-level intersection, arXiv:2502.05202, algorithm 4; transformers'
`AssistantToTargetTranslator` and `UniversalSpeculativeDecodingGenerator` do the same. The draft's
distribution is restricted to the shared tokens, so every proposal is a token of the target and is
judged as any other.

The draft sees the target's text through its own tokenizer. A prompt is encoded as a whole. Of what
is committed later, shared tokens are taken over one by one, and runs of others are re-encoded from
their text. Two losses follow, of acceptance only: the draft may see text cut into other tokens than
it was trained on, and a run that ends within a character, or at a word that its tokenizer would
have joined, is encoded as if it ended there.

Drafts greedy chains; with sampled drafts the probabilities would have to be mapped too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from neuron_spec.drafters.base import NO_PROPOSAL, Choose, Proposal, choose_best
from neuron_spec.drafters.chain import ChainDrafter
from neuron_spec.drafters.growth import Forward, Logits

_FILLER = 0  # a draft id for a commit whose text is empty: the draft has to read something


@dataclass(frozen=True)
class Translation:
    """Between the ids of a draft and those of its target.

    Attributes:
        to_target: [draft vocab] int64, the target's id of every shared draft id, else
            `NO_PROPOSAL`.
        to_draft: shared target id -> draft id.
        reencode: any target ids -> draft ids of the same text.
    """

    to_target: Tensor
    to_draft: Mapping[int, int]
    reencode: Callable[[list[int]], list[int]]

    @classmethod
    def of_shared(
        cls,
        shared: Mapping[int, int],
        reencode: Callable[[list[int]], list[int]],
        *,
        draft_vocab: int,
        target_vocab: int,
        device: torch.device | None = None,
    ) -> Translation:
        """Of draft id -> target id, without ids that a model has no row for."""
        known = {
            draft: target
            for draft, target in shared.items()
            if draft < draft_vocab and target < target_vocab
        }
        to_target = torch.full((draft_vocab,), NO_PROPOSAL, dtype=torch.long)
        to_target[list(known)] = torch.tensor(list(known.values()), dtype=torch.long)
        return cls(
            to_target.to(device), {target: draft for draft, target in known.items()}, reencode
        )

    def of_text(self, ids: Sequence[int]) -> list[int]:
        """Draft ids of a whole text."""
        return self._readable(self.reencode(list(ids)))

    def of_commit(self, ids: Sequence[int]) -> list[int]:
        """Draft ids of tokens that continue a text."""
        draft: list[int] = []
        for is_shared, run in groupby(ids, key=self.to_draft.__contains__):
            if is_shared:
                draft += [self.to_draft[token] for token in run]
            else:
                draft += self.reencode(list(run))
        return self._readable(draft)

    def _readable(self, ids: list[int]) -> list[int]:
        vocab = len(self.to_target)
        return [token for token in ids if token < vocab] or [_FILLER]


class IntersectionDrafter:
    """A chain drafter in the draft's own ids, seen from the target's.

    The same text can be longer in the draft's tokens than in the target's. A sequence that no
    longer fits into the draft's cache gets no more proposals.
    """

    def __init__(
        self, forward: Forward, logits: Logits, translation: Translation, *, max_positions: int
    ) -> None:
        self._translation, self._max_positions = translation, max_positions
        is_hidden = translation.to_target == NO_PROPOSAL  # [draft vocab]

        def shared_logits(hidden: Tensor) -> Tensor:
            return logits(hidden).masked_fill(is_hidden, -torch.inf)

        self._chain = ChainDrafter(forward, shared_logits)
        self._lengths: dict[int, int] = {}  # of the slots that are drafted for, in draft tokens

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`."""
        prompt, first = tokens[:-1].tolist(), tokens[-1:].tolist()
        ids = self._translation.of_text(prompt) + self._translation.of_commit(first)
        if len(ids) <= self._max_positions:
            self._lengths[slot] = len(ids)
            draft_tokens = tokens.new_tensor(ids)
            self._chain.begin(slot, draft_tokens, features)

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        if slot in self._lengths:
            ids = self._translation.of_commit(tokens.tolist())
            self._lengths[slot] += len(ids)
            self._chain.observe(slot, tokens.new_tensor(ids), features[:1].expand(len(ids), -1))

    def release(self, slot: int) -> None:
        """See `Drafter.release`."""
        self._lengths.pop(slot, None)
        self._chain.release(slot)

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        """See `Drafter.propose`; always the best tokens."""
        self._give_up_on_long(num_draft_tokens)
        if not self._lengths:
            return Proposal(torch.full((num_rows, 0), NO_PROPOSAL))
        ids = self._chain.propose(num_rows, num_draft_tokens).tokens  # [rows, k] draft ids
        tokens = self._translation.to_target[ids]
        is_free = [[slot not in self._lengths] for slot in range(num_rows)]
        return Proposal(tokens.masked_fill(torch.tensor(is_free, device=ids.device), NO_PROPOSAL))

    def _give_up_on_long(self, num_draft_tokens: int) -> None:
        """Drafting writes k positions beyond the text, and padding up to k + 1."""
        room = self._max_positions - (num_draft_tokens + 1)
        for slot in [slot for slot, length in self._lengths.items() if length > room]:
            self.release(slot)
