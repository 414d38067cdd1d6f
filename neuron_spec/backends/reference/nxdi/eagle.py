"""NxDI's fused EAGLE and EAGLE-3 speculation, greedy or sampled.

Source: `models/model_base.py`, `NeuronFusedSpecModel._eagle_context_encoding_forward` and
`_eagle_token_gen_forward`. The head runs one position behind the target, k times to draft, then
once over all k + 1 tokens with the target's features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.nxdi import acceptance
from neuron_spec.backends.reference.nxdi.buffer import RollingBuffer
from neuron_spec.backends.reference.nxdi.chance import Chance, first_token, judged
from neuron_spec.backends.reference.nxdi.fused import FusedTarget
from neuron_spec.backends.reference.nxdi.graph import Begun, Inputs, Step
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


class EagleContext:
    """What chain and tree have in common: context encoding and the features between steps."""

    def __init__(
        self, target: Target, head: Draft, buckets: Buckets, *, num_slots: int, chance: Chance
    ) -> None:
        self.target, self.head, self.buckets = FusedTarget(target, buckets), head, buckets
        self.chance = chance
        self.features = RollingBuffer(num_slots, 2 * buckets.speculation_length)

    def encode(self, slot: int, prompt: Sequence[int], params: Tensor) -> Begun:
        """See `Graph.encode`.

        The head's input is the prompt shifted left by one; its last place holds an entry of no
        meaning until the first step overwrites it.
        """
        tokens, positions = padded(prompt, self.buckets)
        logits, features = self.target.context(slot, tokens, positions)
        behind = positions.clone()
        behind[:, len(prompt) - 1] = 0
        shifted = tokens.roll(-1, dims=1)
        self.head.forward(shifted, features, [0], slot, context_branches(behind))
        after = torch.tensor([len(prompt)])
        self.features.put(torch.tensor([slot]), after, features[:, last_place(positions)])
        token = first_token(logits, params, self.chance)
        first_token(logits, params, self.chance)  # the head's own, which nothing uses
        return Begun(token, logits)

    def clamped(self, positions: Tensor) -> Tensor:
        """Near the end of the bucket the last position that has room for a step is repeated, and
        with it the wrong tokens come, without an error."""
        return positions.clamp(max=self.buckets.seq_len - self.buckets.speculation_length)


class FusedEagle(EagleContext):
    """The fused graph of a target and an EAGLE or EAGLE-3 head, drafting chains. See `Graph`."""

    def step(self, inputs: Inputs) -> Step:
        """See `Graph.step`."""
        seen = self.buckets.seen(inputs.positions.tolist())
        at = self.clamped(inputs.positions)
        feature = self.features.get(at)
        chain, draft_logits = self._drafted(inputs, at, feature, seen)
        logits, features = self.target.verify(chain, at, seen)
        self._catch_up(chain, at, torch.cat([feature, features[:, :-1]], dim=1), seen)
        drafts, argmaxes = chain[:, 1:], logits.argmax(dim=-1)
        sampled = None
        if self.chance.sampling.is_greedy:
            tokens, index = argmaxes, acceptance.count_matches(drafts, argmaxes[:, :-1])
        else:
            sampled = judged(drafts, logits, inputs.params, self.chance)
            tokens, index = sampled.selected, sampled.num_accepted_by_test
        accepted = acceptance.postprocessed(drafts, tokens, at)
        rows = torch.arange(len(at))
        self.features.put(rows, accepted.next_positions, features[rows, index])
        return Step(drafts, draft_logits, argmaxes, logits, accepted, sampled)

    def decode(self, inputs: Inputs) -> Tensor:
        """See `Graph.decode`."""
        return self.target.decode(inputs)

    def _drafted(
        self, inputs: Inputs, at: Tensor, feature: Tensor, seen: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The first input and k drafts, [rows, k + 1], and the logits they were chosen from."""
        rows, seen = torch.arange(len(at)), seen.clone()
        seen[rows, inputs.positions - 1] = False  # the entry of no meaning, or an old one
        chain, all_logits = inputs.tokens[:, None], []
        for index in range(self.buckets.speculation_length - 1):
            places = at[:, None] - 1 + index
            one = Pass(chain[:, -1:], places, seen[:, None], causal(1))
            feature = run_draft(self.head, one, feature)
            all_logits.append(self.head.logits(feature))
            seen[rows[:, None], places] = True
            chain = torch.cat([chain, all_logits[-1].argmax(dim=-1)], dim=1)
        return chain, tuple(all_logits)

    def _catch_up(self, chain: Tensor, at: Tensor, features: Tensor, seen: Tensor) -> None:
        """The head's entries again, from the target's features."""
        count = chain.shape[1]
        places = at[:, None] - 1 + torch.arange(count)
        run_draft(self.head, Pass(chain, places, seen[:, None], causal(count)), features)
