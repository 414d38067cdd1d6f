"""Do draft and target speak of the same tokens and the same hidden states?"""

from __future__ import annotations

from neuron_spec.checkpoints.identify import Identity
from neuron_spec.preflight.findings import Finding, error

_REASONS = {
    "vocab_size": "token ids are exchanged raw between draft and target",
    "hidden_size": "the draft reads the target's hidden states",
}


def check_pair(draft: Identity, target: Identity) -> list[Finding]:
    """Token ids and features are exchanged raw; nothing in NxDI compares them."""
    return [
        error(
            f"draft-{field.replace('_', '-')}",
            f"{field}: draft {ours}, target {theirs}; {reason}",
            "use the draft that was trained for this target",
            "NxDI models/model_base.py (ids and hidden states are passed on unchecked)",
        )
        for field, reason in _REASONS.items()
        if (ours := getattr(draft.config, field)) != (theirs := getattr(target.config, field))
    ]
