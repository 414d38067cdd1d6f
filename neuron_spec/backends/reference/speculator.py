"""The reference step: draft, score all drafted positions in one pass, judge by the rule, commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from neuron_spec.backends.base import (
    GREEDY,
    Decoding,
    Limits,
    PrefillResult,
    StepPhases,
    StepResult,
)
from neuron_spec.backends.decisions import Decided, Decisions, dead_end, tree_of
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.prefixes import PrefixCache
from neuron_spec.backends.reference.scoring import Score, Scores, WideScore
from neuron_spec.drafters import NO_PROPOSAL, Drafter, Proposal

PREFILL_CHUNK_TOKENS = 128
"""A piece of a prompt takes about as long as a few steps do. Borders are always at multiples, so
that what else runs does not change how a prompt is rounded."""


@dataclass
class _Row:
    """A running sequence: its last token, not in the cache yet, and that token's position."""

    last_token: int
    position: int


@dataclass
class _Prompt:
    """A prompt that is being run: so many of its tokens are in the cache."""

    tokens: Tensor
    """[1, n] ids"""
    decoding: Decoding
    num_done: int = 0
    num_cached: int = 0
    features: list[Tensor] = field(default_factory=list)
    """[tokens of a piece, feature] each"""


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
        score: Score | None = None,
    ) -> None:
        """`score`: how a step is scored if not in a pass as wide as it."""
        self.score = score or WideScore(target)
        self._target, self._drafter, self._decisions = target, drafter, decisions
        self._limits, self._device = limits, device
        self._rows: dict[int, _Row] = {}
        self._prompts: dict[int, _Prompt] = {}
        self._prefixes: PrefixCache | None = None
        self.tells_phases = False
        self.phases: StepPhases | None = None

    @property
    def limits(self) -> Limits:
        """What it can hold."""
        return self._limits

    @property
    def prefill_chunk_tokens(self) -> int:
        """See `ChunkedSpeculator.prefill_chunk_tokens`."""
        return PREFILL_CHUNK_TOKENS

    def cache_prefixes(self, max_bytes: int) -> None:
        """See `PrefixCachingSpeculator.cache_prefixes`."""
        self._prefixes = None
        if max_bytes > 0:
            self._prefixes = PrefixCache(
                self._target.cache, piece_tokens=PREFILL_CHUNK_TOKENS, max_bytes=max_bytes
            )

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        """Run the prompt in one slot; see `Speculator.prefill`."""
        self.begin_prefill(slot, prompt_ids, decoding)
        while (result := self.advance_prefill(slot)) is None:
            pass
        return result

    def begin_prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> None:
        """See `ChunkedSpeculator.begin_prefill`."""
        self._check_prompt(slot, prompt_ids)
        tokens = torch.tensor([list(prompt_ids)], device=self._device)
        prompt = self._prompts[slot] = _Prompt(tokens, decoding)
        if self._prefixes:
            kept = self._prefixes.restore(slot, prompt_ids)
            prompt.features = [features for features in kept if features is not None]
            prompt.num_done = prompt.num_cached = len(kept) * PREFILL_CHUNK_TOKENS

    @torch.inference_mode()
    def advance_prefill(self, slot: int) -> PrefillResult | None:
        """See `ChunkedSpeculator.advance_prefill`."""
        prompt = self._prompts[slot]
        start = prompt.num_done
        piece = prompt.tokens[:, start : start + PREFILL_CHUNK_TOKENS]
        hidden, features = self._target.hidden(piece, [start], slot)  # each [1, tokens, …]
        prompt.num_done += piece.shape[1]
        if self._drafter:
            prompt.features.append(features[0])
        if self._prefixes:
            kept = features[0] if self._drafter else None
            self._prefixes.keep(slot, prompt.tokens[0].tolist(), start, kept)
        if prompt.num_done < prompt.tokens.shape[1]:
            return None
        return self._begin(slot, prompt, self._target.logits(hidden[:, -1:])[0])

    @torch.inference_mode()
    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """One step of every running slot; see `Speculator.step`."""
        if not 0 <= num_draft_tokens <= self._limits.num_draft_tokens:
            raise ValueError(f"k = {num_draft_tokens} is beyond {self._limits.num_draft_tokens}")
        if not self._rows:
            return []
        begun = self._now()
        proposal = self._draft(max(self._rows) + 1, num_draft_tokens)
        drafted = self._now()
        scores = self._score(proposal)
        decided = self._decisions.judge(proposal.tokens, proposal.parents, proposal.probs, scores)
        drafts = proposal.tokens.tolist()
        depths = _depths(proposal)
        results = [
            self._commit(slot, drafts[slot], decided[slot], scores, depths[slot])
            for slot in sorted(self._rows)
        ]
        if self._drafter:
            self._show(self._drafter, results, decided, scores)
        if self.tells_phases:
            self.phases = StepPhases(drafted - begun, self._now() - drafted)
        return results

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._rows.pop(slot, None)
        self._prompts.pop(slot, None)
        self._decisions.release(slot)
        if self._drafter:
            self._drafter.release(slot)

    def _now(self) -> float:
        """The time, with the device's work done where phases are to be told apart."""
        if self.tells_phases and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _begin(self, slot: int, prompt: _Prompt, logits: Tensor) -> PrefillResult:
        """The first token of a prompt that has been run, from logits [1, vocab]."""
        tokens = prompt.tokens[0]
        self._decisions.begin(slot, tokens, prompt.decoding)
        first = self._decisions.first_token(slot, logits[0])
        if self._drafter:
            begun = torch.cat([tokens, tokens.new_tensor([first])])
            self._drafter.begin(slot, begun, torch.cat(prompt.features))
        del self._prompts[slot]
        self._rows[slot] = _Row(first, len(tokens))
        logprobs = self._decisions.logprobs(slot, logits, [first])
        logprob = logprobs[0] if logprobs else None
        return PrefillResult(first, logits[0].float(), logprob, prompt.num_cached)

    def _draft(self, num_rows: int, num_draft_tokens: int) -> Proposal:
        if self._drafter is None or num_draft_tokens == 0:
            return Proposal(torch.empty(num_rows, 0, dtype=torch.long, device=self._device))
        choose = self._decisions.chooser(num_rows)
        proposal = self._drafter.propose(num_rows, num_draft_tokens, choose)
        tokens = proposal.tokens.to(self._device)
        plain = self._decisions.plain_slots()
        if plain:
            indices = torch.tensor(plain, device=self._device)
            tokens = tokens.index_fill(0, indices, NO_PROPOSAL)
        return Proposal(tokens, proposal.parents, proposal.probs)

    def _score(self, proposal: Proposal) -> Scores:
        """The target over last token and drafts.

        Rows that do not run may be written at the first position that their prefill overwrites.
        """
        drafts = proposal.tokens
        slots = range(drafts.shape[0])
        last = [[self._rows[slot].last_token if slot in self._rows else 0] for slot in slots]
        tokens = torch.tensor(last, device=self._device)
        if drafts.shape[1]:
            tokens = torch.cat([tokens, drafts.clamp(min=0)], dim=1)  # [rows, n + 1]
        starts = {slot: row.position for slot, row in self._rows.items()}
        idle = {slot: self._num_prefilled(slot) for slot in slots if slot not in self._rows}
        return self.score(tokens, starts, proposal.parents, idle=idle)

    def _num_prefilled(self, slot: int) -> int:
        prompt = self._prompts.get(slot)
        return prompt.num_done if prompt else 0

    def _commit(
        self,
        slot: int,
        drafts: Sequence[int],
        decided: Decided,
        scores: Scores,
        num_positions: int | None,
    ) -> StepResult:
        """Keep the accepted branch and the token after it, and tell the options."""
        if decided.is_dead_end:
            return StepResult(slot, (), 0, 0, failure=dead_end())
        row, nodes = self._rows[slot], list(decided.nodes)
        tokens = (*(drafts[node - 1] for node in nodes[1:]), decided.next_token)
        self._target.keep(slot, row.position, nodes)
        logprobs = None
        if self._decisions.tells_logprobs(slot):
            logits = _of_nodes(scores.logits[slot], nodes)
            logprobs = self._decisions.logprobs(slot, logits, tokens)
        self._decisions.observe(slot, tokens)
        row.last_token, row.position = tokens[-1], row.position + len(tokens)
        num_drafted = len(drafts) - drafts.count(NO_PROPOSAL)
        branch = None if num_positions is None else tuple(nodes[1:])
        if num_drafted == 0:
            num_positions = None
        return StepResult(
            slot, tokens, num_drafted, len(tokens) - 1, logprobs, num_positions, branch
        )

    def _show(
        self,
        drafter: Drafter,
        results: Sequence[StepResult],
        decided: Sequence[Decided],
        scores: Scores,
    ) -> None:
        """Tell the drafter what all rows committed, made into tensors at once."""
        going_on = [result for result in results if result.failure is None]
        tokens = [token for result in going_on for token in result.tokens]
        committed = torch.tensor(tokens, device=self._device)
        end = 0
        for result in going_on:
            slot, begin, end = result.slot, end, end + len(result.tokens)
            own = committed[begin:end] if len(going_on) > 1 else committed
            drafter.observe(slot, own, _of_nodes(scores.features[slot], decided[slot].nodes))

    def _check_prompt(self, slot: int, prompt_ids: Sequence[int]) -> None:
        if not 0 <= slot < self._limits.batch_size or slot in self._rows or slot in self._prompts:
            raise ValueError(f"slot {slot} is not free")
        if not 1 <= len(prompt_ids) <= self._limits.max_total_tokens:
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens")


def _of_nodes(values: Tensor, nodes: Sequence[int]) -> Tensor:
    """[n, …] -> those of the nodes; a view where they are the first ones, as in every chain."""
    is_first = nodes[-1] == len(nodes) - 1
    return values[: len(nodes)] if is_first else values[list(nodes)]


def _depths(proposal: Proposal) -> list[int | None]:
    """Depth of every row's tree; None for chains."""
    if proposal.parents is None:
        return [None] * proposal.tokens.shape[0]
    return [tree_of(tuple(row)).max_depth for row in proposal.parents.tolist()]
