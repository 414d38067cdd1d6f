"""NxDI's unfused speculation: a draft model of its own, and the adapter in between.

Source: `utils/hf_adapter.py`, `_standard_assisted_decoding`. Batch 1, greedy. In the first step the
draft encodes the prompt itself, so that its first proposal is for the place of the token that the
target has given already: all proposals of this step are compared one place late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.nxdi.acceptance import count_matches
from neuron_spec.backends.reference.nxdi.fused import FusedTarget
from neuron_spec.backends.reference.nxdi.graph import Begun, Inputs
from neuron_spec.backends.reference.nxdi.passes import (
    Buckets,
    Draft,
    Pass,
    causal,
    context_branches,
    last_place,
    padded,
    run_draft,
)


@dataclass(frozen=True)
class DraftCall:
    """One run of the draft: its input token and position (None for the prompt), its output."""

    token: int | None
    position: int | None
    output: int


@dataclass(frozen=True)
class UnfusedStep:
    """What a step gives.

    Attributes:
        inputs: what the target scored, filled up with padding.
        position: of the first of them.
        target_tokens: its choice after each.
        emitted: the accepted drafts and the target's own token.
    """

    inputs: tuple[int, ...]
    position: int
    target_tokens: tuple[int, ...]
    calls: tuple[DraftCall, ...]
    emitted: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        """Drafts kept."""
        return len(self.emitted) - 1


class Unfused:
    """A target and a draft model, each compiled alone."""

    def __init__(
        self,
        target: Target,
        draft: Draft,
        buckets: Buckets,
        *,
        num_assistant_tokens: int,
        pad_token_id: int = 0,
    ) -> None:
        if num_assistant_tokens > buckets.speculation_length:
            raise ValueError("the target scores no more than speculation_length tokens")
        self.buckets = buckets
        self._target, self._draft = FusedTarget(target, buckets), draft
        self._num_drafts, self._pad = num_assistant_tokens, pad_token_id
        self._prompt: tuple[int, ...] = ()  # until the draft has encoded it

    @torch.inference_mode()
    def encode(self, prompt: Sequence[int]) -> Begun:
        """Context encoding of the target alone."""
        self._prompt = tuple(prompt)
        logits, _ = self._target.context(0, *padded(prompt, self.buckets))
        return Begun(int(logits.argmax()), logits)

    @torch.inference_mode()
    def step(
        self,
        token: int,
        position: int,
        *,
        most: int | None = None,
        eos_token_ids: Collection[int] = (),
    ) -> UnfusedStep:
        """Draft, score, accept.

        Args:
            token: the last token, which stands at `position`.
            most: drafts that may be accepted; None for all.
        """
        calls = self._drafted(token, position, eos_token_ids)
        drafts = [call.output for call in calls[:-1]]  # the last one is not verified
        length = self.buckets.speculation_length
        inputs = [token, *drafts, *[self._pad] * (length - 1 - len(drafts))]
        seen = self.buckets.seen([position])
        logits, _ = self._target.verify(torch.tensor([inputs]), torch.tensor([position]), seen)
        target_tokens = logits[0].argmax(dim=-1)
        num_accepted = int(count_matches(torch.tensor(drafts), target_tokens[: len(drafts)]))
        if most is not None:
            num_accepted = min(num_accepted, most)
        chosen = target_tokens.tolist()
        emitted = tuple(chosen[: num_accepted + 1])
        return UnfusedStep(tuple(inputs), position, tuple(chosen), tuple(calls), emitted)

    @torch.inference_mode()
    def decode(self, token: int, position: int) -> Tensor:
        """The target alone: logits [vocab] after `token`."""
        return self._target.decode(Inputs.of([token], [position]))[0]

    def _drafted(
        self, token: int, position: int, eos_token_ids: Collection[int]
    ) -> list[DraftCall]:
        """The draft's runs, which end early at an EOS."""
        calls: list[DraftCall] = []
        while len(calls) < self._num_drafts:
            if self._prompt:
                calls.append(DraftCall(None, None, self._encode_draft()))
            else:
                place = position + sum(call.position is not None for call in calls)
                last = token if not calls else calls[-1].output
                calls.append(DraftCall(last, place, self._run_draft(last, place)))
            if calls[-1].output in eos_token_ids:
                break
        return calls

    def _encode_draft(self) -> int:
        tokens, positions = padded(self._prompt, self.buckets)
        branches = context_branches(positions)
        hidden = self._draft.forward(tokens, _none(tokens), [0], 0, branches)
        self._prompt = ()
        return int(self._draft.logits(hidden[0, last_place(positions)]).argmax())

    def _run_draft(self, token: int, position: int) -> int:
        tokens, place = torch.tensor([[token]]), torch.tensor([[position]])
        one = Pass(tokens, place, self.buckets.seen([position])[:, None], causal(1))
        hidden = run_draft(self._draft, one, _none(tokens))
        return int(self._draft.logits(hidden[0, 0]).argmax())


@dataclass(frozen=True)
class UnfusedRun:
    """One output, prompt included, and its steps."""

    sequence: tuple[int, ...]
    steps: tuple[UnfusedStep, ...]


def generate_unfused(
    unfused: Unfused, prompt: Sequence[int], *, max_length: int, eos_token_ids: Collection[int] = ()
) -> UnfusedRun:
    """NxDI's unfused loop.

    As in the fused one the counter leaves out the token of context encoding, but the run goes on
    where exactly `speculation_length` tokens are left. Only the last token of a step is compared
    with EOS.
    """
    new, steps = [unfused.encode(prompt).token], list[UnfusedStep]()
    position = counter = len(prompt)
    while True:
        most = max_length - counter - 1
        steps.append(unfused.step(new[-1], position, most=most, eos_token_ids=eos_token_ids))
        emitted = steps[-1].emitted
        new += emitted
        position, counter = position + len(emitted), counter + len(emitted)
        left = max_length - counter
        if new[-1] in eos_token_ids or left <= 0 or left < unfused.buckets.speculation_length:
            return UnfusedRun((*prompt, *new), tuple(steps))


def _none(tokens: Tensor) -> Tensor:
    """A language model reads no features."""
    return torch.zeros(*tokens.shape, 0)
