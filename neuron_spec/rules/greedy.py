"""Greedy match: keep the longest drafted prefix that the target would have chosen itself.

Stern et al. 2018 (arXiv:1811.03115), section 3; NxDI's fused speculation applies the same rule on
the device (`models/model_base.py`).
"""

from __future__ import annotations

from torch import Tensor

from neuron_spec.rules.verdict import Verdict


def verify(draft_tokens: Tensor, target_logits: Tensor) -> Verdict:
    """Compare a drafted chain with the target's argmax at every position.

    Args:
        draft_tokens: [batch, k] integer ids; k may be 0.
        target_logits: [batch, k + 1, vocab] any float type; row i scores the token after the first
            i drafted ones.

    Returns:
        The verdict; ties in the logits go to the lowest id, as in `torch.argmax`.

    Raises:
        ValueError: the shapes do not belong together.
    """
    batch, num_draft_tokens = draft_tokens.shape
    if target_logits.ndim != 3 or target_logits.shape[:2] != (batch, num_draft_tokens + 1):
        raise ValueError(
            f"target_logits {tuple(target_logits.shape)} does not score draft_tokens "
            f"{tuple(draft_tokens.shape)}: expected [{batch}, {num_draft_tokens + 1}, vocab]"
        )
    target_tokens = target_logits.argmax(dim=-1)  # [batch, k + 1]
    matches = (draft_tokens == target_tokens[:, :-1]).long()  # [batch, k]
    num_accepted = matches.cumprod(dim=1).sum(dim=1)  # [batch]
    next_tokens = target_tokens.gather(1, num_accepted[:, None]).squeeze(1)
    return Verdict(num_accepted, next_tokens)
