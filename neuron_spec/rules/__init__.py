"""Which drafted tokens are kept: pure functions of tensors, one file a rule."""

from collections.abc import Callable

from neuron_spec.rules import greedy
from neuron_spec.rules.verdict import Verdict

RULES: dict[str, Callable[..., Verdict]] = {"greedy": greedy.verify}

__all__ = ["RULES", "Verdict"]
