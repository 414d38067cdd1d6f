"""Do draft and target belong together, and can NxDI compute this variant of the draft at all?"""

from __future__ import annotations

from neuron_spec.checkpoints.contradictions import adopt_vocabulary
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.preflight.findings import Finding, error


def check_pair(draft: Identity, target: Identity) -> list[Finding]:
    """Token ids and hidden states are exchanged raw; nothing in NxDI compares them."""
    return [
        error(
            f"draft-{code}",
            sentence,
            "use a draft that was trained for this target, of a variant that NxDI computes",
            f"neuron_spec.checkpoints.formats.{draft.family} (with its sources)",
        )
        for code, sentence in adopt_vocabulary(draft, target).refusals(target)
    ]
