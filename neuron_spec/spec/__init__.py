"""What the user asks for: the build spec, its loading, and the guarantees its rule gives."""

from neuron_spec.spec.guarantees import Claim, claims_of
from neuron_spec.spec.load import load_spec
from neuron_spec.spec.schema import BuildSpec

__all__ = ["BuildSpec", "Claim", "claims_of", "load_spec"]
