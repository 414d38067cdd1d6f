"""The reference step: draft, score k + 1 positions in one pass, judge by the rule, commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuron_spec.backends.base import Limits, PrefillResult, StepResult
from neuron_spec.backends.reference.models import Target
from neuron_spec.drafters import NO_PROPOSAL, Drafter
from neuron_spec.rules import Verdict


@dataclass
class _Row:
    """A running sequence: its last token, not in the cache yet, and that token's position."""

    last_token: int
    position: int


class ReferenceSpeculator:
    """A `Speculator` made of a target, a drafter (or none) and a verification rule."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        rule: Callable[[Tensor, Tensor], Verdict],
        *,
        limits: Limits,
        device: torch.device,
    ) -> None:
        self._target, self._drafter, self._rule = target, drafter, rule
        self._limits, self._device = limits, device
        self._rows: dict[int, _Row] = {}

    @property
    def limits(self) -> Limits:
        """What it can hold."""
        return self._limits

    @torch.inference_mode()
    def prefill(self, slot: int, prompt_ids: Sequence[int]) -> PrefillResult:
        """Run the prompt in one slot; see `Speculator.prefill`."""
        self._check_prompt(slot, prompt_ids)
        tokens = torch.tensor([list(prompt_ids)], device=self._device)
        hidden, features = self._target.hidden(tokens, [0], slot)  # each [1, n, …]
        logits = self._target.logits(hidden[:, -1:])[0, 0]
        first = logits.argmax()
        if self._drafter:
            self._drafter.begin(slot, torch.cat([tokens[0], first[None]]), features[0])
        self._rows[slot] = _Row(int(first), len(prompt_ids))
        return PrefillResult(int(first), logits.float())

    @torch.inference_mode()
    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """One step of every running slot; see `Speculator.step`."""
        if not 0 <= num_draft_tokens <= self._limits.num_draft_tokens:
            raise ValueError(f"k = {num_draft_tokens} is beyond {self._limits.num_draft_tokens}")
        if not self._rows:
            return []
        num_rows = max(self._rows) + 1
        drafts = self._draft(num_rows, num_draft_tokens)  # [rows, k]
        features, verdict = self._verify(drafts)
        accepted, corrections = verdict.num_accepted.tolist(), verdict.next_tokens.tolist()
        proposals = drafts.tolist()
        results = []
        for slot in sorted(self._rows):
            tokens = (*proposals[slot][: accepted[slot]], corrections[slot])
            self._commit(slot, tokens, features[slot])
            num_drafted = len(proposals[slot]) - proposals[slot].count(NO_PROPOSAL)
            results.append(StepResult(slot, tokens, num_drafted, accepted[slot]))
        return results

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._rows.pop(slot, None)
        if self._drafter:
            self._drafter.release(slot)

    def _draft(self, num_rows: int, num_draft_tokens: int) -> Tensor:
        if self._drafter is None or num_draft_tokens == 0:
            return torch.empty(num_rows, 0, dtype=torch.long, device=self._device)
        return self._drafter.propose(num_rows, num_draft_tokens).to(self._device)

    def _verify(self, drafts: Tensor) -> tuple[Tensor, Verdict]:
        """Target features [rows, k + 1, feature] over last token and drafts, and the verdict.

        Rows of free slots run along on position 0 of their slot, which a prefill overwrites.
        """
        rows = [self._rows.get(slot, _Row(0, 0)) for slot in range(len(drafts))]
        last = torch.tensor([[row.last_token] for row in rows], device=self._device)
        tokens = torch.cat([last, drafts.clamp(min=0)], dim=1)  # [rows, k + 1]
        hidden, features = self._target.hidden(tokens, [row.position for row in rows])
        return features, self._rule(drafts, self._target.logits(hidden))

    def _commit(self, slot: int, tokens: tuple[int, ...], features: Tensor) -> None:
        if self._drafter:
            committed = torch.tensor(tokens, device=self._device)
            self._drafter.observe(slot, committed, features[: len(tokens)])
        row = self._rows[slot]
        row.last_token, row.position = tokens[-1], row.position + len(tokens)

    def _check_prompt(self, slot: int, prompt_ids: Sequence[int]) -> None:
        if not 0 <= slot < self._limits.batch_size or slot in self._rows:
            raise ValueError(f"slot {slot} is not free")
        if not 1 <= len(prompt_ids) <= self._limits.max_total_tokens:
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens")
