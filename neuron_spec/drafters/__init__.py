"""Who proposes tokens, one file a method. Drafters get callables and import no backend."""

from neuron_spec.drafters.base import (
    NO_PROPOSAL,
    Branches,
    Choose,
    Drafter,
    Proposal,
    choose_best,
)
from neuron_spec.drafters.chain import ChainDrafter
from neuron_spec.drafters.eagle import EagleDrafter
from neuron_spec.drafters.growth import CHAIN, DraftShape, GrowDynamicTree
from neuron_spec.drafters.medusa import MedusaDrafter
from neuron_spec.drafters.ngram import NgramDrafter
from neuron_spec.drafters.suffix import SuffixDrafter
from neuron_spec.drafters.vocabulary import IntersectionDrafter, Translation

# Draft method -> drafter. The chain drafters take `forward` and `logits`, Medusa its heads, n-gram
# its sizes, suffix its depth. Hydra heads and MTP layers are fed as an EAGLE head is: pairs of a
# feature and the token after it; the target's first layers as a language model is.
CHAIN_DRAFTERS = {
    "model": ChainDrafter,
    "hydra": EagleDrafter,
    "eagle": EagleDrafter,
    "eagle3": EagleDrafter,
    "mtp": EagleDrafter,
    "early-exit": ChainDrafter,
}
DRAFTERS: dict[str, type[Drafter]] = {
    **CHAIN_DRAFTERS,
    "medusa": MedusaDrafter,
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}

__all__ = [
    "CHAIN",
    "CHAIN_DRAFTERS",
    "DRAFTERS",
    "DraftShape",
    "GrowDynamicTree",
    "Branches",
    "Choose",
    "Proposal",
    "choose_best",
    "NO_PROPOSAL",
    "ChainDrafter",
    "Drafter",
    "EagleDrafter",
    "IntersectionDrafter",
    "MedusaDrafter",
    "NgramDrafter",
    "SuffixDrafter",
    "Translation",
]
