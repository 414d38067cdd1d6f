"""EAGLE chain drafting, for v1 and EAGLE-3 heads.

Sources: arXiv:2401.15077, arXiv:2503.01840; NxDI `models/model_base.py`,
`_eagle_token_gen_forward`.

The head predicts the target's next feature from pairs: the feature of position t with the embedding
of the token at t + 1. The feature is the target's hidden state after its final norm in v1, and
three layers' hidden states side by side in EAGLE-3. Pair t sits at draft position t, one behind the
target. While drafting, the head's own output stands in for the feature; an EAGLE-3 head tells the
two apart by their width, so that nothing here differs.

NxDI runs the head once more after verification, over true features; here these pairs wait and are
run with the next step's first proposal, which computes the same in one pass fewer.
"""

from __future__ import annotations

from torch import Tensor

from neuron_spec.drafters.chain import ChainDrafter


class EagleDrafter(ChainDrafter):
    """A chain whose inputs are pairs of a token and the target's feature before it."""

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.begin`; the first token has no feature before it and makes no pair."""
        self._start(slot, tokens[1:], features)

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        """See `Drafter.observe`."""
        self._pending[slot] = self._pending[slot].extended(tokens, features)
