"""Which tokens a batch gets: every row's own sampling options, random numbers and history, and the
verification rule over all of them.

With any draft, k and batch a request's random numbers are those of its seed and positions, so that
its output does not depend on who runs beside it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from neuron_spec.backends.base import GREEDY, Decoding, TokenLogprobs
from neuron_spec.drafters import Choose, choose_best
from neuron_spec.rules import CHAIN_RULES, TREE_RULES, TreeVerdict, Uniforms, Verdict, greedy
from neuron_spec.rules.uniforms import DRAFT_STREAM, SAMPLE_STREAM, uniform_at
from neuron_spec.sampling import (
    SamplingParams,
    adjusted_logits,
    counts_after_drafts,
    ends_forbidden,
    probabilities,
    sample,
)
from neuron_spec.trees import NO_PARENT, Tree

_SEED_BITS = 62


@dataclass
class _History:
    """What a row's options look back on.

    Attributes:
        position: of the next new token in the sequence.
        prompt_counts, output_counts: [1, vocab] how often each id occurs; None where no option
            asks.
    """

    decoding: Decoding
    seed: int
    position: int
    num_generated: int = 0
    prompt_counts: Tensor | None = None
    output_counts: Tensor | None = None

    @property
    def params(self) -> SamplingParams:
        return self.decoding.sampling


@dataclass(frozen=True)
class Decided:
    """What one row commits.

    Attributes:
        nodes: the accepted nodes of its tree, the root first.
        next_token: the target's own token after them.
    """

    nodes: tuple[int, ...]
    next_token: int


class Decisions:
    """Chooses, draws and judges for the running rows."""

    def __init__(
        self, rule: str, parameters: Mapping[str, float], *, draws_drafts: bool, vocab_size: int
    ) -> None:
        self._chain_rule = partial(CHAIN_RULES[rule], **parameters)
        self._tree_rule = partial(TREE_RULES[rule], **parameters)
        self._draws_drafts, self._vocab_size = draws_drafts, vocab_size
        self._rows: dict[int, _History] = {}

    def begin(self, slot: int, prompt_ids: Tensor, decoding: Decoding) -> None:
        """Start a row; prompt_ids: [n]."""
        params = decoding.sampling
        seed = secrets.randbits(_SEED_BITS) if params.seed is None else params.seed
        history = _History(decoding, seed, len(prompt_ids))
        if _looks_back(params):
            counts = torch.bincount(prompt_ids, minlength=self._vocab_size)
            history.prompt_counts = counts[None].float()
            history.output_counts = torch.zeros_like(history.prompt_counts)
        self._rows[slot] = history

    def release(self, slot: int) -> None:
        """Forget a row."""
        self._rows.pop(slot, None)

    def first_token(self, slot: int, logits: Tensor) -> int:
        """The token after the prompt, from logits [vocab]."""
        row = self._rows[slot]
        nothing = torch.empty(0, dtype=torch.long, device=logits.device)
        probs = _apply(probabilities, row, Tree.chain(0), nothing, logits[None])
        seed, position = (torch.tensor([number]) for number in (row.seed, row.position))
        uniform = uniform_at(seed, position, SAMPLE_STREAM).to(probs.device)
        token = int(sample(probs, uniform))
        self.observe(slot, [token])
        return token

    def chooser(self, num_rows: int) -> Choose:
        """How the drafted tokens of the next step are chosen."""
        rows = [self._rows.get(slot) for slot in range(num_rows)]
        if not self._draws_drafts or all(row is None or row.params.is_greedy for row in rows):
            return choose_best
        return _Draws(rows)

    def judge(
        self, tokens: Tensor, parents: Tensor | None, draft_probs: Tensor | None, logits: Tensor
    ) -> list[Decided]:
        """Judge one step, row by row of the batch.

        Args:
            tokens: [rows, n] drafted ids.
            parents: [rows, n] their parents, see `Proposal`; None for chains.
            draft_probs: [rows, n, vocab] what they were drawn from, or None.
            logits: [rows, n + 1, vocab] the target's, at the root and after every drafted token.
        """
        if parents is None:
            trees = [Tree.chain(tokens.shape[1])]
        else:
            trees = [tree_of(tuple(row)) for row in parents.tolist()]
        if len(set(trees)) == 1:
            return self._judge(range(len(tokens)), trees[0], tokens, draft_probs, logits)
        decided = []
        for slot, tree in enumerate(trees):
            row = slice(slot, slot + 1)
            decided += self._judge([slot], tree, tokens[row], None, logits[row])
        return decided

    def observe(self, slot: int, tokens: Sequence[int]) -> None:
        """Count what a row committed."""
        row = self._rows[slot]
        row.position += len(tokens)
        row.num_generated += len(tokens)
        if row.output_counts is not None:
            counts = torch.bincount(torch.tensor(tokens), minlength=self._vocab_size)
            row.output_counts += counts.to(row.output_counts)

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

    def _judge(
        self,
        slots: Sequence[int],
        tree: Tree,
        tokens: Tensor,
        draft_probs: Tensor | None,
        logits: Tensor,
    ) -> list[Decided]:
        rows = [self._rows.get(slot) for slot in slots]
        is_chain = tree.max_depth == tree.num_draft_tokens
        if all(row is None or row.params.is_greedy for row in rows):
            adjusted = _applied(adjusted_logits, rows, tree, tokens, logits)
            if is_chain:
                return _decided(greedy.verify(tokens, adjusted))
            return _decided(TREE_RULES["greedy"](tree, tokens, None, adjusted, None))
        probs = _applied(probabilities, rows, tree, tokens, logits)
        uniforms = _uniforms(rows, tree, probs.device)
        if is_chain:
            return _decided(self._chain_rule(tokens, draft_probs, probs, uniforms))
        return _decided(self._tree_rule(tree, tokens, draft_probs, probs, uniforms))


class _Draws:
    """Draws the tokens of a chain, one depth a call, each row with its own options and numbers."""

    def __init__(self, rows: Sequence[_History | None]) -> None:
        self._rows, self._depth = rows, 0

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Choose`."""
        pairs = zip(self._rows, logits[:, 0], strict=True)
        probs = torch.stack([probabilities(own, _draft_params(row)) for row, own in pairs])
        seeds = torch.tensor([row.seed if row else 0 for row in self._rows])
        positions = torch.tensor([row.position + self._depth if row else 0 for row in self._rows])
        uniforms = uniform_at(seeds, positions, DRAFT_STREAM).to(probs.device)
        self._depth += 1
        return sample(probs, uniforms)[:, None], probs[:, None]


def _draft_params(row: _History | None) -> SamplingParams:
    """A draft is drawn with the request's temperature and cuts; what looks back on the output is
    the target's affair, and any draft keeps its distribution."""
    if row is None:
        return SamplingParams()
    return replace(
        row.params,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias={},
        min_tokens=0,
    )


def _looks_back(params: SamplingParams) -> bool:
    penalties = (params.presence_penalty, params.frequency_penalty)
    return params.repetition_penalty != 1 or penalties != (0, 0)


Transform = Callable[..., Tensor]
"""`probabilities` or `adjusted_logits`."""


def _applied(
    transform: Transform,
    rows: Sequence[_History | None],
    tree: Tree,
    tokens: Tensor,
    logits: Tensor,
) -> Tensor:
    """[rows, nodes, vocab] logits through every row's own options."""
    if all(row is None or row.decoding == GREEDY for row in rows):
        return transform(logits, SamplingParams())
    each = zip(rows, tokens, logits, strict=True)
    return torch.stack([_apply(transform, row, tree, own, scores) for row, own, scores in each])


def _apply(
    transform: Transform, row: _History | None, tree: Tree, tokens: Tensor, logits: Tensor
) -> Tensor:
    """One row's logits [nodes, vocab], each node with the history that leads to it."""
    if row is None:
        return transform(logits, SamplingParams())
    prompt = counts = forbidden = None
    if row.output_counts is not None and row.prompt_counts is not None:
        counts = counts_after_drafts(row.output_counts, tree, tokens[None])[0]
        prompt = row.prompt_counts.expand_as(counts)
    if row.params.min_tokens > row.num_generated:
        depths = torch.tensor(tree.depths, device=logits.device)
        ends = sorted(row.decoding.stop_token_ids)
        forbidden = ends_forbidden(row.params, row.num_generated + depths, ends, logits.shape[-1])
    return transform(
        logits,
        row.params,
        prompt_counts=prompt,
        output_counts=counts,
        forbidden=forbidden,
    )


def _uniforms(rows: Sequence[_History | None], tree: Tree, device: torch.device) -> Uniforms:
    seeds = torch.tensor([row.seed if row else 0 for row in rows])
    positions = torch.tensor([row.position if row else 0 for row in rows])
    drawn = Uniforms.at_positions(seeds, positions, tree)
    return Uniforms(drawn.accept.to(device), drawn.sample.to(device))


@lru_cache(maxsize=4096)
def tree_of(parents: tuple[int, ...]) -> Tree:
    """The tree of a proposal's parents, without the root."""
    return Tree((NO_PARENT, *parents))


def _decided(verdict: Verdict) -> list[Decided]:
    next_tokens, accepted = verdict.next_tokens.tolist(), verdict.num_accepted.tolist()
    if isinstance(verdict, TreeVerdict):
        routes = [
            tuple(row[: n + 1]) for row, n in zip(verdict.nodes.tolist(), accepted, strict=True)
        ]
    else:
        routes = [tuple(range(n + 1)) for n in accepted]
    return [Decided(route, token) for route, token in zip(routes, next_tokens, strict=True)]
