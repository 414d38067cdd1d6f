"""Targets that give logits: the host drafts, or drives a draft model, and verifies by any rule.

NxDI compiles two graphs of such a target: context encoding, and one that scores a fixed number of
positions. So a step of any k has as many inputs; places behind the drafts are filled up, and
overwritten by the next step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

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
from neuron_spec.backends.decisions import Decided, Decisions, KnownLogits, dead_end
from neuron_spec.backends.neuron.running.calls import Device
from neuron_spec.backends.neuron.running.inputs import prompt_inputs, step_inputs
from neuron_spec.backends.neuron.running.outputs import logits_of
from neuron_spec.backends.neuron.running.slots import Row, Slots
from neuron_spec.drafters import NO_PROPOSAL, Drafter, Proposal

_FILLING = 0


class LogitsModel:
    """An application that gives logits."""

    def __init__(self, device: Device, *, vocab_size: int) -> None:
        self.device, self.vocab_size = device, vocab_size

    def encode(self, slot: int, prompt: Sequence[int]) -> Tensor:
        """Run a prompt; logits [vocab] after it.

        What is longer than the longest prompt graph goes on in steps. They write to the other slots
        too, where nothing may run then.
        """
        longest = self.device.longest_prompt
        outputs = self.device.encode(prompt_inputs(slot, prompt[:longest], longest=longest))
        logits = logits_of(outputs, (1, 1), self.vocab_size)[0, 0]
        for start in range(longest, len(prompt), self.device.step_length):
            piece = prompt[start : start + self.device.step_length]
            logits = self.score([slot], [piece], [start])[0, len(piece) - 1]
        return logits

    def score(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], positions: Sequence[int]
    ) -> Tensor:
        """Logits [rows, step length, vocab] after every token; see `step_inputs`."""
        width = self.device.step_length
        whole = [[*row, *[_FILLING] * (width - len(row))] for row in tokens]
        outputs = self.device.step(step_inputs(slots, whole, positions))
        return logits_of(outputs, (len(slots), width), self.vocab_size)


class HostSpeculator:
    """A `Speculator` of a target that gives logits, a drafter (or none), and a rule."""

    def __init__(
        self, target: LogitsModel, drafter: Drafter | None, decisions: Decisions, *, limits: Limits
    ) -> None:
        self._target, self._drafter, self._decisions = target, drafter, decisions
        self._limits = limits
        self._slots: Slots[Row] = Slots(limits)
        self.tells_phases = False
        self.phases: StepPhases | None = None

    @property
    def limits(self) -> Limits:
        """What it can hold."""
        return self._limits

    @torch.inference_mode()
    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        """See `Speculator.prefill`. While nothing else runs, whole outputs may be handed over, of
        which `verify` asks the logits.

        Raises:
            RequestError: the grammar begins with what no token of the vocabulary can.
            BackendError: NxDI failed.
        """
        longest = None if self._slots else self._limits.max_total_tokens
        self._slots.check_prompt(slot, prompt_ids, longest)
        logits = self._target.encode(slot, prompt_ids)
        prompt = torch.tensor(list(prompt_ids))
        self._decisions.begin(slot, prompt, decoding)
        first = self._decisions.first_token(slot, logits)
        if self._drafter:
            begun = torch.cat([prompt, prompt.new_tensor([first])])
            self._drafter.begin(slot, begun, torch.empty(len(prompt), 0))
        self._slots[slot] = Row(first, len(prompt_ids), decoding)
        logprobs = self._decisions.logprobs(slot, logits[None], [first])
        return PrefillResult(first, logits, logprobs[0] if logprobs else None)

    @torch.inference_mode()
    def step(self, num_draft_tokens: int) -> list[StepResult]:
        """See `Speculator.step`; errors as in `prefill`."""
        self._slots.check_draft_length(num_draft_tokens)
        if not self._slots:
            return []
        begun = time.perf_counter()
        proposal = self._draft(self._slots.numbers[-1] + 1, num_draft_tokens)
        drafted = time.perf_counter()
        drafts = proposal.tokens.tolist()
        logits = self._score(drafts)
        decided = self._decisions.judge(proposal.tokens, None, proposal.probs, KnownLogits(logits))
        results = [
            self._commit(slot, drafts[slot], decided[slot], logits[slot])
            for slot in self._slots.numbers
        ]
        if self.tells_phases:
            self.phases = StepPhases(drafted - begun, time.perf_counter() - drafted)
        return results

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._slots.free(slot)
        self._decisions.release(slot)
        if self._drafter:
            self._drafter.release(slot)

    def _draft(self, num_rows: int, num_draft_tokens: int) -> Proposal:
        if self._drafter is None or num_draft_tokens == 0:
            return Proposal(torch.empty(num_rows, 0, dtype=torch.long))
        choose = self._decisions.chooser(num_rows)
        proposal = self._drafter.propose(num_rows, num_draft_tokens, choose)
        plain = torch.tensor(self._decisions.plain_slots(), dtype=torch.long)
        tokens = proposal.tokens.index_fill(0, plain, NO_PROPOSAL)
        return Proposal(tokens, probs=proposal.probs)

    def _score(self, drafts: Sequence[Sequence[int]]) -> Tensor:
        """[num rows, n + 1, vocab] logits by slot; those of free slots are 0."""
        slots, rows = self._slots.numbers, self._slots.rows
        tokens = [
            [row.token, *(max(token, _FILLING) for token in drafts[slot])]
            for slot, row in zip(slots, rows, strict=True)
        ]
        scored = self._target.score(slots, tokens, [row.position for row in rows])
        logits = scored.new_zeros(len(drafts), len(drafts[0]) + 1, scored.shape[-1])
        logits[slots] = scored[:, : logits.shape[1]]
        return logits

    def _commit(
        self, slot: int, drafts: Sequence[int], decided: Decided, logits: Tensor
    ) -> StepResult:
        if decided.is_dead_end:
            return StepResult(slot, (), 0, 0, failure=dead_end())
        num_accepted = len(decided.nodes) - 1
        tokens = (*drafts[:num_accepted], decided.next_token)
        logprobs = self._decisions.logprobs(slot, logits[: len(tokens)], tokens)
        self._decisions.observe(slot, tokens)
        if self._drafter:
            self._drafter.observe(slot, torch.tensor(tokens), torch.empty(len(tokens), 0))
        self._slots[slot].advance(tokens)
        num_drafted = len(drafts) - drafts.count(NO_PROPOSAL)
        return StepResult(slot, tokens, num_drafted, num_accepted, logprobs)
