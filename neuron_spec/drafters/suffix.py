"""Suffix decoding: propose what most often followed the last tokens, in this request's own text or
in earlier answers.

Sources: SuffixDecoding (arXiv:2411.04975, section 4) and its authors' ArcticInference
(`csrc/suffix_decoding/suffix_tree.cc`, `arctic_inference/suffix_decoding/cache.py`). As there, one
tree holds the prompt and the answer so far and another one earlier answers, a match of p tokens
proposes at most p, and of all matches the one with the highest sum of estimated probabilities
wins. Probabilities are estimated over the occurrences that something followed.

Needs no weights. What is proposed depends on the requests that were served before, and so do speed
and acceptance. The output of a greedy request never does, nor that of the rule sample-match: every
token of it is the target's own. Under the other rules its distribution does not, but which draw a
seed gives can.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from neuron_spec.drafters.base import Choose, Proposal, choose_best
from neuron_spec.drafters.ngram import padded_proposal
from neuron_spec.drafters.suffix_tree import AnswerStore, SuffixTree


@dataclass
class _Request:
    """A running sequence."""

    tree: SuffixTree
    answer_start: int
    tokens: list[int] = field(default_factory=list)

    def extend(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self.tree.extend(tokens)


class SuffixDrafter:
    """Follows the most frequent continuation.

    Args:
        depth: the longest string that is counted: what is matched and what is proposed together.
        min_probability: below it, by the estimate, a token is not proposed.
        max_answers: how many earlier answers are kept; the oldest is dropped first.
    """

    def __init__(self, *, depth: int, min_probability: float, max_answers: int) -> None:
        self._depth, self._min_probability = depth, min_probability
        self._earlier = AnswerStore(depth, max_answers)
        self._requests: dict[int, _Request] = {}

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`."""
        request = _Request(SuffixTree(self._depth), answer_start=len(tokens) - 1)
        request.extend(tokens.tolist())
        self._requests[slot] = request

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        self._requests[slot].extend(tokens.tolist())

    def release(self, slot: int) -> None:
        """See `Drafter.release`; the answer is kept for the requests that follow."""
        request = self._requests.pop(slot, None)
        if request:
            self._earlier.add(request.tokens[request.answer_start :])

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        """See `Drafter.propose`; a row whose last token is new proposes nothing."""
        rows = [
            self._row(self._requests[slot], num_draft_tokens) if slot in self._requests else []
            for slot in range(num_rows)
        ]
        return padded_proposal(rows)

    def _row(self, request: _Request, num_draft_tokens: int) -> list[int]:
        context = request.tokens[-self._depth :]
        own, earlier = (
            tree.continuation(context, num_draft_tokens, self._min_probability)
            for tree in (request.tree, self._earlier.tree)
        )
        return earlier.tokens if earlier.score > own.score else own.tokens
