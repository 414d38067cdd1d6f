"""Who proposes tokens, one file a method. Drafters get callables and import no backend."""

from neuron_spec.drafters.base import NO_PROPOSAL, Drafter
from neuron_spec.drafters.chain import ChainDrafter
from neuron_spec.drafters.eagle import EagleDrafter
from neuron_spec.drafters.ngram import NgramDrafter

# Draft method -> drafter. The model drafters take `forward` and `logits`; n-gram its sizes.
MODEL_DRAFTERS = {"model": ChainDrafter, "eagle": EagleDrafter, "eagle3": EagleDrafter}
DRAFTERS: dict[str, type[Drafter]] = {**MODEL_DRAFTERS, "ngram": NgramDrafter}

__all__ = [
    "DRAFTERS",
    "MODEL_DRAFTERS",
    "NO_PROPOSAL",
    "ChainDrafter",
    "Drafter",
    "EagleDrafter",
    "NgramDrafter",
]
