"""The reference step: draft, score all drafted positions in one pass, judge by the rule, commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult
from neuron_spec.backends.reference.decisions import Decided, Decisions, tree_of
from neuron_spec.backends.reference.models import Target
from neuron_spec.drafters import NO_PROPOSAL, Branches, Drafter, Proposal
from neuron_spec.trees import Tree


@dataclass
class _Row:
    """A running sequence: its last token, not in the cache yet, and that token's position."""

    last_token: int
    position: int


@dataclass(frozen=True)
class _Scores:
    """What the target makes of one step's tokens: [rows, n + 1, …] each."""

    features: Tensor
    logits: Tensor


class ReferenceSpeculator:
    """A `Speculator` made of a target, a drafter (or none) and a verification rule."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        decisions: Decisions,
        *,
        limits: Limits,
        device: torch.device,
    ) -> None:
        self._target, self._drafter, self._decisions = target, drafter, decisions
        self._limits, self._device = limits, device
        self._rows: dict[int, _Row] = {}

    @property
    def limits(self) -> Limits:
        """What it can hold."""
        return self._limits

    @torch.inference_mode()
    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        """Run the prompt in one slot; see `Speculator.prefill`."""
        self._check_prompt(slot, prompt_ids)
        tokens = torch.tensor([list(prompt_ids)], device=self._device)
        hidden, features = self._target.hidden(tokens, [0], slot)  # each [1, n, …]
        logits = self._target.logits(hidden[:, -1:])[0]  # [1, vocab]
        self._decisions.begin(slot, tokens[0], decoding)
        first = self._decisions.first_token(slot, logits[0])
        if self._drafter:
            begun = torch.cat([tokens[0], tokens.new_tensor([first])])
            self._drafter.begin(slot, begun, features[0])
        self._rows[slot] = _Row(first, len(prompt_ids))
        logprobs = self._decisions.logprobs(slot, logits, [first])
        return PrefillResult(first, logits[0].float(), logprobs[0] if logprobs else None)

    @torch.inference_mode()
    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """One step of every running slot; see `Speculator.step`."""
        if not 0 <= num_draft_tokens <= self._limits.num_draft_tokens:
            raise ValueError(f"k = {num_draft_tokens} is beyond {self._limits.num_draft_tokens}")
        if not self._rows:
            return []
        proposal = self._draft(max(self._rows) + 1, num_draft_tokens)
        scores = self._score(proposal)
        decided = self._decisions.judge(
            proposal.tokens, proposal.parents, proposal.probs, scores.logits
        )
        drafts = proposal.tokens.tolist()
        depths = _depths(proposal)
        return [
            self._commit(slot, drafts[slot], decided[slot], scores, depths[slot])
            for slot in sorted(self._rows)
        ]

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._rows.pop(slot, None)
        self._decisions.release(slot)
        if self._drafter:
            self._drafter.release(slot)

    def _draft(self, num_rows: int, num_draft_tokens: int) -> Proposal:
        if self._drafter is None or num_draft_tokens == 0:
            return Proposal(torch.empty(num_rows, 0, dtype=torch.long, device=self._device))
        choose = self._decisions.chooser(num_rows)
        proposal = self._drafter.propose(num_rows, num_draft_tokens, choose)
        return Proposal(proposal.tokens.to(self._device), proposal.parents, proposal.probs)

    def _score(self, proposal: Proposal) -> _Scores:
        """The target over last token and drafts.

        Rows of free slots run along on position 0 of their slot, which a prefill overwrites.
        """
        drafts = proposal.tokens
        rows = [self._rows.get(slot, _Row(0, 0)) for slot in range(len(drafts))]
        last = torch.tensor([[row.last_token] for row in rows], device=self._device)
        tokens = torch.cat([last, drafts.clamp(min=0)], dim=1)  # [rows, n + 1]
        positions = [row.position for row in rows]
        branches = None
        if proposal.parents is not None:
            branches = _branches(positions, proposal.parents)
        hidden, features = self._target.hidden(tokens, positions, 0, branches)
        return _Scores(features, self._target.logits(hidden))

    def _commit(
        self,
        slot: int,
        drafts: Sequence[int],
        decided: Decided,
        scores: _Scores,
        num_positions: int | None,
    ) -> StepResult:
        """Keep the accepted branch and the token after it, and tell drafter and options."""
        row, nodes = self._rows[slot], list(decided.nodes)
        tokens = (*(drafts[node - 1] for node in nodes[1:]), decided.next_token)
        self._target.keep(slot, row.position, nodes)
        logprobs = self._decisions.logprobs(slot, scores.logits[slot, nodes], tokens)
        self._decisions.observe(slot, tokens)
        if self._drafter:
            committed = torch.tensor(tokens, device=self._device)
            self._drafter.observe(slot, committed, scores.features[slot, nodes])
        row.last_token, row.position = tokens[-1], row.position + len(tokens)
        num_drafted = len(drafts) - drafts.count(NO_PROPOSAL)
        return StepResult(slot, tokens, num_drafted, len(tokens) - 1, logprobs, num_positions)

    def _check_prompt(self, slot: int, prompt_ids: Sequence[int]) -> None:
        if not 0 <= slot < self._limits.batch_size or slot in self._rows:
            raise ValueError(f"slot {slot} is not free")
        if not 1 <= len(prompt_ids) <= self._limits.max_total_tokens:
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens")


def _depths(proposal: Proposal) -> list[int | None]:
    """Depth of every row's tree; None for chains."""
    if proposal.parents is None:
        return [None] * len(proposal.tokens)
    return [tree_of(tuple(row)).max_depth for row in proposal.parents.tolist()]


def _branches(positions: Sequence[int], parents: Tensor) -> Branches:
    """How the nodes of every row's tree, root included, stand in the cache."""
    trees = [tree_of(tuple(row)) for row in parents.tolist()]
    tables = [_tables(tree) for tree in trees]
    depths = torch.stack([depths for depths, _ in tables]).to(parents.device)
    mask = torch.stack([mask for _, mask in tables]).to(parents.device)
    return Branches(positions, depths, mask)


@lru_cache(maxsize=4096)
def _tables(tree: Tree) -> tuple[Tensor, Tensor]:
    """Depths [nodes] and attention mask [nodes, nodes] of a tree."""
    return torch.tensor(tree.depths), torch.tensor(tree.attention_mask)
