"""NxDI's fused speculation with a plain draft model, and the target in all fused graphs.

Source: `models/model_base.py`, `NeuronFusedSpecModel._context_encoding_forward` and
`_token_gen_forward`. Greedy only: with `do_sample` NxDI fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.nxdi.acceptance import postprocessed
from neuron_spec.backends.reference.nxdi.chance import Chance, first_token
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
    run_target,
    write,
)


class FusedTarget:
    """The target with NxDI's static lengths: what all fused graphs have in common."""

    def __init__(self, target: Target, buckets: Buckets) -> None:
        if buckets.max_context_length == buckets.speculation_length:
            raise RuntimeError(
                f"NxDI takes a context bucket of {buckets.max_context_length} for a speculation "
                "step, as long as the speculation length"
            )
        self.target, self.buckets = target, buckets

    def context(self, slot: int, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a padded prompt; logits [vocab] after it and features [1, bucket, feature]."""
        branches = context_branches(positions)
        hidden, features = self.target.hidden(tokens, [0], slot, branches)
        return self.target.logits(hidden[0, last_place(positions)]), features

    def verify(self, tokens: Tensor, positions: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Score chains of ids [rows, n] from `positions` [rows] on.

        Args:
            seen: [rows, seq_len] bool, NxDI's attention mask.

        Returns:
            Logits and features, [rows, n, …] each.
        """
        count = tokens.shape[1]
        places = positions[:, None] + torch.arange(count)
        inputs = Pass(tokens, places, seen[:, None], causal(count))
        hidden, features = run_target(self.target, inputs)
        write(self.target.cache, self.buckets.seq_len, places)
        return self.target.logits(hidden), features

    def decode(self, inputs: Inputs) -> Tensor:
        """See `Graph.decode`."""
        seen = self.buckets.seen(inputs.positions.tolist())
        return self.verify(inputs.tokens[:, None], inputs.positions, seen)[0][:, 0]


class FusedDraft:
    """The fused graph of a target and a draft model. See `Graph`.

    The draft runs once more than its proposals are verified, to fill its cache. From the second run
    on, every row of its attention mask has the positions of all rows: with more than one row
    proposals come from places that are not the row's own. The output stays the target's.
    """

    def __init__(self, target: Target, draft: Draft, buckets: Buckets) -> None:
        self._target, self._draft, self.buckets = FusedTarget(target, buckets), draft, buckets

    def encode(self, slot: int, prompt: Sequence[int], params: Tensor) -> Begun:
        """See `Graph.encode`."""
        tokens, positions = padded(prompt, self.buckets)
        logits, _ = self._target.context(slot, tokens, positions)
        self._draft.forward(tokens, _no_features(tokens), [0], slot, context_branches(positions))
        return Begun(int(logits.argmax()), logits)

    def step(self, inputs: Inputs) -> Step:
        """See `Graph.step`."""
        length = self.buckets.speculation_length
        seen = self.buckets.seen(inputs.positions.tolist())
        draft_seen = seen.clone()
        chain, all_logits = inputs.tokens[:, None], []
        for index in range(length):
            places = inputs.positions[:, None] + index
            one = Pass(chain[:, -1:], places, draft_seen[:, None], causal(1))
            output = run_draft(self._draft, one, _no_features(one.tokens))
            all_logits.append(self._draft.logits(output))
            draft_seen[:, places] = True  # of all rows, in every row
            chain = torch.cat([chain, all_logits[-1].argmax(dim=-1)], dim=1)
        logits, _ = self._target.verify(chain[:, :-1], inputs.positions, seen)
        target_tokens = logits.argmax(dim=-1)
        accepted = postprocessed(chain[:, 1:length], target_tokens, inputs.positions)
        return Step(chain[:, 1:], tuple(all_logits), target_tokens, logits, accepted)

    def decode(self, inputs: Inputs) -> Tensor:
        """See `Graph.decode`."""
        return self._target.decode(inputs)


class TargetAlone:
    """A target compiled without speculation. See `Graph`; its step drafts nothing."""

    def __init__(self, target: Target, buckets: Buckets, chance: Chance) -> None:
        self._target, self.buckets = FusedTarget(target, buckets), buckets
        self._chance = chance

    def encode(self, slot: int, prompt: Sequence[int], params: Tensor) -> Begun:
        """See `Graph.encode`."""
        logits, _ = self._target.context(slot, *padded(prompt, self.buckets))
        return Begun(first_token(logits, params, self._chance), logits)

    def step(self, inputs: Inputs) -> Step:
        """See `Graph.step`."""
        logits = self.decode(inputs)[:, None]
        tokens, drafts = logits.argmax(dim=-1), inputs.tokens[:, None][:, :0]
        return Step(drafts, (), tokens, logits, postprocessed(drafts, tokens, inputs.positions))

    def decode(self, inputs: Inputs) -> Tensor:
        """See `Graph.decode`."""
        return self._target.decode(inputs)


def _no_features(tokens: Tensor) -> Tensor:
    """A language model reads none."""
    return torch.zeros(*tokens.shape, 0)
