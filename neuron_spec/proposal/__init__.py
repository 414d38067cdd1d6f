"""Two checkpoints and a machine -> a build spec, every choice with its reason. No torch."""

from neuron_spec.proposal.models import METHODS_WITHOUT_DRAFT, Models, read_models
from neuron_spec.proposal.placement import find_instance
from neuron_spec.proposal.propose import Proposal, propose
from neuron_spec.proposal.toml_text import toml_text

__all__ = [
    "METHODS_WITHOUT_DRAFT",
    "Models",
    "Proposal",
    "find_instance",
    "propose",
    "read_models",
    "toml_text",
]
