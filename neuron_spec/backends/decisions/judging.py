"""Which tokens a batch gets: every row's own sampling options, random numbers and history, and the
verification rule over all of them.

With any draft, k and batch a request's random numbers are those of its seed and positions, so that
its output does not depend on who runs beside it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from neuron_spec.backends.base import Decoding, TokenLogprobs
from neuron_spec.backends.decisions.draws import Draws
from neuron_spec.backends.decisions.history import History, Paths, Rows
from neuron_spec.backends.decisions.scored import Scored
from neuron_spec.drafters import Choose, choose_best
from neuron_spec.errors import RequestError
from neuron_spec.rules import CHAIN_RULES, TREE_RULES, TreeVerdict, Uniforms, Verdict, greedy
from neuron_spec.rules.uniforms import SAMPLE_STREAM, uniform_at
from neuron_spec.sampling import adjusted_logits, best_ids, probabilities, sample
from neuron_spec.trees import NO_PARENT, ROOT, Tree

_SEED_BITS = 62


@dataclass(frozen=True)
class Decided:
    """What one row commits.

    Attributes:
        nodes: the accepted nodes of its tree, the root first.
        next_token: the target's own token after them.
        is_dead_end: the row's grammar came to where the vocabulary has no token for it, so that
            nothing can be committed.
    """

    nodes: tuple[int, ...]
    next_token: int
    is_dead_end: bool = False


class Decisions:
    """Chooses, draws and judges for the running rows."""

    def __init__(
        self, rule: str, parameters: Mapping[str, float], *, draws_drafts: bool, vocab_size: int
    ) -> None:
        self._chain_rule = partial(CHAIN_RULES[rule], **parameters)
        self._tree_rule = partial(TREE_RULES[rule], **parameters)
        self._draws_drafts, self._vocab_size = draws_drafts, vocab_size
        self._rows: dict[int, History] = {}

    def begin(self, slot: int, prompt_ids: Tensor, decoding: Decoding) -> None:
        """Start a row; prompt_ids: [n]."""
        params = decoding.sampling
        seed = secrets.randbits(_SEED_BITS) if params.seed is None else params.seed
        self._rows[slot] = History.begin(decoding, seed, prompt_ids, self._vocab_size)

    def release(self, slot: int) -> None:
        """Forget a row."""
        self._rows.pop(slot, None)

    def first_token(self, slot: int, logits: Tensor) -> int:
        """The token after the prompt, from logits [vocab].

        Raises:
            RequestError: the grammar begins with what no token of the vocabulary can.
        """
        row = self._rows[slot]
        nothing = torch.empty(1, 0, dtype=torch.long, device=logits.device)
        paths = Paths.of([row], Tree.chain(0), nothing, len(logits))
        if paths.is_dead_end(0, (ROOT,)):
            raise dead_end()
        probs = paths.applied(probabilities, logits[None, None])[0]
        seed, position = (torch.tensor([number]) for number in (row.seed, row.position))
        uniform = uniform_at(seed, position, SAMPLE_STREAM).to(probs.device)
        token = int(sample(probs, uniform))
        self.observe(slot, [token])
        return token

    def plain_slots(self) -> list[int]:
        """Rows to which nothing may be proposed."""
        return [slot for slot, row in self._rows.items() if not row.decoding.speculate]

    def chooser(self, num_rows: int) -> Choose:
        """How the drafted tokens of the next step are chosen."""
        rows = [self._rows.get(slot) for slot in range(num_rows)]
        draws = self._draws_drafts and any(row and not row.params.is_greedy for row in rows)
        if not draws and all(row is None or row.matcher is None for row in rows):
            return choose_best
        return Draws(rows, draws=draws)

    def judge(
        self, tokens: Tensor, parents: Tensor | None, draft_probs: Tensor | None, scored: Scored
    ) -> list[Decided]:
        """Judge one step, row by row of the batch.

        Args:
            tokens: [rows, n] drafted ids.
            parents: [rows, n] their parents, see `Proposal`; None for chains.
            draft_probs: [rows, n, vocab] what they were drawn from, or None.
            scored: what the target makes of them.
        """
        num_rows, num_drafts = tokens.shape
        if parents is None:
            trees = [tree_of(tuple(range(num_drafts)))] * num_rows
        else:
            trees = [tree_of(tuple(row)) for row in parents.tolist()]
        if self._are_plainly_greedy(range(num_rows)):
            return _followed(trees, tokens, scored.best)
        if len(set(trees)) == 1:
            return self._judge(slice(None), trees[0], tokens, draft_probs, scored)
        decided = []
        for slot, tree in enumerate(trees):
            decided += self._judge(slice(slot, slot + 1), tree, tokens, None, scored)
        return decided

    def tells_logprobs(self, slot: int) -> bool:
        """Whether the request wants log-probabilities."""
        return self._rows[slot].decoding.num_logprobs is not None

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        """Count what a row committed."""
        self._rows[slot].observe(tokens)

    def logprobs(
        self, slot: int, logits: Tensor, tokens: Sequence[int]
    ) -> tuple[TokenLogprobs, ...] | None:
        """Of tokens chosen from logits [n, vocab]; None if the request does not want them."""
        count = self._rows[slot].decoding.num_logprobs
        if count is None:
            return None
        rows = logits.float().log_softmax(dim=-1)
        top = rows.topk(count, dim=-1)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        tops = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
        chosen = rows[torch.arange(len(tokens)), torch.tensor(tokens, device=rows.device)]
        return tuple(
            TokenLogprobs(logprob, best)
            for logprob, best in zip(chosen.tolist(), tops, strict=True)
        )

    def _are_plainly_greedy(self, slots: Iterable[int]) -> bool:
        """Whether the target's likeliest ids are all that counts in these rows; free ones are."""
        rows = map(self._rows.get, slots)
        return all(row is None or row.is_plainly_greedy for row in rows)

    def _judge(
        self,
        batch: slice,
        tree: Tree,
        tokens: Tensor,
        draft_probs: Tensor | None,
        scored: Scored,
    ) -> list[Decided]:
        """The rows of that part of the batch, which have drafted the same tree."""
        slots = range(len(tokens))[batch]
        if self._are_plainly_greedy(slots):
            return _followed([tree] * len(slots), tokens[batch], scored.best[batch])
        rows, logits = [self._rows.get(slot) for slot in slots], scored.logits[batch]
        paths = Paths.of(rows, tree, tokens[batch], logits.shape[-1])
        if all(row is None or row.params.is_greedy for row in rows):
            best = best_ids(paths.applied(adjusted_logits, logits))
            decided = _followed([tree] * len(rows), paths.tokens, best)
        else:
            decided = _decided(self._verdict(paths, draft_probs, logits))
        return [
            replace(one, is_dead_end=True) if paths.is_dead_end(place, one.nodes) else one
            for place, one in enumerate(decided)
        ]

    def _verdict(
        self, paths: Paths, draft_probs: Tensor | None, logits: Tensor
    ) -> Verdict | TreeVerdict:
        rows, tree, tokens = paths.rows, paths.tree, paths.tokens
        probs = paths.applied(probabilities, logits)
        uniforms = _uniforms(rows, tree, probs.device)
        if tree.is_chain:
            return self._chain_rule(tokens, draft_probs, probs, uniforms)
        return self._tree_rule(tree, tokens, draft_probs, probs, uniforms)


def dead_end() -> RequestError:
    """Why a request with a grammar cannot go on."""
    return RequestError(
        "the schema asks here for what no token of this model can begin", field="response_format"
    )


def _uniforms(rows: Rows, tree: Tree, device: torch.device) -> Uniforms:
    seeds = torch.tensor([row.seed if row else 0 for row in rows])
    positions = torch.tensor([row.position if row else 0 for row in rows])
    drawn = Uniforms.at_positions(seeds, positions, tree)
    return Uniforms(drawn.accept.to(device), drawn.sample.to(device))


@lru_cache(maxsize=4096)
def tree_of(parents: tuple[int, ...]) -> Tree:
    """The tree of a proposal's parents, without the root."""
    return Tree((NO_PARENT, *parents))


def _followed(trees: Sequence[Tree], tokens: Tensor, best: Tensor) -> list[Decided]:
    """The greedy rule over drafts [rows, n] and the target's likeliest ids [rows, n + 1]."""
    rows = zip(trees, tokens.tolist(), best.tolist(), strict=True)
    return [Decided(*greedy.follow(*row)) for row in rows]


def _decided(verdict: Verdict) -> list[Decided]:
    next_tokens, accepted = verdict.next_tokens.tolist(), verdict.num_accepted.tolist()
    if isinstance(verdict, TreeVerdict):
        routes = [
            tuple(row[: n + 1]) for row, n in zip(verdict.nodes.tolist(), accepted, strict=True)
        ]
    else:
        routes = [tuple(range(n + 1)) for n in accepted]
    return [Decided(route, token) for route, token in zip(routes, next_tokens, strict=True)]
