"""Who proposes tokens, one file a method. Drafters get callables and import no backend."""

from neuron_spec.drafters.eagle import EagleDrafter

DRAFTERS = {"eagle": EagleDrafter}

__all__ = ["DRAFTERS", "EagleDrafter"]
