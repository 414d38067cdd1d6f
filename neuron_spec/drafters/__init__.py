"""Who proposes tokens, one file a method. Drafters get callables and import no backend."""

from neuron_spec.drafters.eagle import EagleDrafter

# EAGLE-3 drafts as EAGLE v1 does; what differs, the head and the features, is behind callables.
DRAFTERS = {"eagle": EagleDrafter, "eagle3": EagleDrafter}

__all__ = ["DRAFTERS", "EagleDrafter"]
