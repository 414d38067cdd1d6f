"""What led to a row's next token, and what its options make of logits there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from neuron_spec.backends.base import GREEDY, Decoding
from neuron_spec.grammars import Matcher, NodeMasks, node_masks
from neuron_spec.sampling import counts_after_drafts, ends_forbidden
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.trees import Tree


@dataclass
class History:
    """What a row's options look back on.

    Attributes:
        position: of the next new token in the sequence.
        prompt_counts, output_counts: [1, vocab] how often each id occurs; None where no option
            asks.
        matcher: how far the output has come in its grammar; None without one.
    """

    decoding: Decoding
    seed: int
    position: int
    num_generated: int = 0
    prompt_counts: Tensor | None = None
    output_counts: Tensor | None = None
    matcher: Matcher | None = None

    @classmethod
    def begin(cls, decoding: Decoding, seed: int, prompt_ids: Tensor, vocab: int) -> History:
        """Of a row whose prompt [n] has been run."""
        history = cls(decoding, seed, len(prompt_ids))
        if looks_back(decoding.sampling):
            counts = torch.bincount(prompt_ids, minlength=vocab)
            history.prompt_counts = counts[None].float()
            history.output_counts = torch.zeros_like(history.prompt_counts)
        if decoding.grammar is not None:
            history.matcher = decoding.grammar.begin()
        return history

    @property
    def params(self) -> SamplingParams:
        """The request's sampling options."""
        return self.decoding.sampling

    @cached_property
    def is_plainly_greedy(self) -> bool:
        """Whether its tokens are the target's likeliest ones, whatever came before."""
        params = self.params
        return params.is_greedy and not params.in_effect and self.decoding.grammar is None

    @property
    def draft_params(self) -> SamplingParams:
        """A draft is drawn with the request's temperature and cuts; what looks back on the output
        is the target's affair, and any draft keeps its distribution."""
        return replace(
            self.params,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            logit_bias={},
            min_tokens=0,
        )

    def observe(self, tokens: Sequence[int]) -> None:
        """Count what was committed, and go on in the grammar until its end."""
        self.position += len(tokens)
        self.num_generated += len(tokens)
        if self.output_counts is not None:
            vocab = self.output_counts.shape[-1]
            counts = torch.bincount(torch.tensor(tokens), minlength=vocab)
            self.output_counts += counts.to(self.output_counts)
        if self.matcher is not None:
            for token in tokens:
                if not self.matcher.is_ended and not self.matcher.accept(token):
                    raise RuntimeError(f"token {token} was committed against the grammar")


Rows = Sequence[History | None]
"""By row of the batch; None where nothing runs."""

Transform = Callable[..., Tensor]
"""`probabilities` or `adjusted_logits`."""


def looks_back(params: SamplingParams) -> bool:
    """Whether an option counts the tokens that came before."""
    penalties = (params.presence_penalty, params.frequency_penalty)
    return params.repetition_penalty != 1 or penalties != (0, 0)


@dataclass(frozen=True)
class Paths:
    """What leads to every node of one step's drafts.

    Attributes:
        tokens: [rows, nodes - 1] drafted ids of one tree for all rows.
        masks: of the rows' grammars.
    """

    rows: Rows
    tree: Tree
    tokens: Tensor
    masks: Sequence[NodeMasks | None]

    @classmethod
    def of(cls, rows: Rows, tree: Tree, tokens: Tensor, vocab: int) -> Paths:
        """With the masks along every row's drafts."""
        masks: list[NodeMasks | None] = [None] * len(rows)
        for place, row in enumerate(rows):
            if row is not None and row.matcher is not None:
                masks[place] = node_masks(row.matcher, tree, tokens[place].tolist(), vocab)
        return cls(rows, tree, tokens, masks)

    def applied(self, transform: Transform, logits: Tensor) -> Tensor:
        """[rows, nodes, vocab] logits through every row's own options."""
        if all(row is None or row.decoding == GREEDY for row in self.rows):
            return transform(logits, GREEDY.sampling)
        places = range(len(self.rows))
        return torch.stack([self._applied(transform, place, logits[place]) for place in places])

    def is_dead_end(self, place: int, nodes: Sequence[int]) -> bool:
        """Whether a route of a row comes where its grammar has no token of the vocabulary."""
        mask = self.masks[place]
        return mask is not None and not mask.dead_ends.isdisjoint(nodes)

    def _applied(self, transform: Transform, place: int, logits: Tensor) -> Tensor:
        """One row's logits [nodes, vocab], each node with the history that leads to it."""
        row, mask = self.rows[place], self.masks[place]
        if row is None:
            return transform(logits, GREEDY.sampling)
        prompt = counts = None
        if row.output_counts is not None and row.prompt_counts is not None:
            tokens = self.tokens[place : place + 1]
            counts = counts_after_drafts(row.output_counts, self.tree, tokens)[0]
            prompt = row.prompt_counts.expand_as(counts)
        forbidden = None if mask is None else ~mask.allowed.to(logits.device)
        if row.params.min_tokens > row.num_generated:
            ends = self._early_ends(row, logits)
            forbidden = ends if forbidden is None else forbidden | ends
        return transform(
            logits,
            row.params,
            prompt_counts=prompt,
            output_counts=counts,
            forbidden=forbidden,
        )

    def _early_ends(self, row: History, logits: Tensor) -> Tensor:
        depths = torch.tensor(self.tree.depths, device=logits.device)
        ends = sorted(row.decoding.stop_token_ids)
        return ends_forbidden(row.params, row.num_generated + depths, ends, logits.shape[-1])
