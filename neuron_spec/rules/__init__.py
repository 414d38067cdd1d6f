"""Which drafted tokens are kept: pure functions of tensors, one file a rule.

`RULES` is greedy match on logits, which needs no random numbers. `CHAIN_RULES` and `TREE_RULES`
hold every rule under one signature each:

    verify(draft_tokens, draft_probs, target_probs, uniforms) -> Verdict
    verify_tree(tree, draft_tokens, draft_probs, target_probs, uniforms) -> TreeVerdict

See `ChainRule` and `TreeRule` for shapes. What a rule takes beside that is bound by keyword before:
`partial(CHAIN_RULES["lenient"], lenience=0.5)`; `epsilon` and `delta` of typical acceptance;
`siblings` of the two rejection rules on trees whose siblings were drawn.
"""

from collections.abc import Callable

from neuron_spec.rules import greedy, lenience, rejection, sample_match, typical
from neuron_spec.rules.uniforms import Uniforms
from neuron_spec.rules.verdict import NO_PROPOSAL, ChainRule, TreeRule, TreeVerdict, Verdict

RULES: dict[str, Callable[..., Verdict]] = {"greedy": greedy.verify}

CHAIN_RULES: dict[str, Callable[..., Verdict]] = {
    "greedy": greedy.verify_probs,
    "rejection": rejection.verify,
    "lenient": lenience.verify,
    "typical": typical.verify,
    "sample-match": sample_match.verify,
}
TREE_RULES: dict[str, Callable[..., TreeVerdict]] = {
    "greedy": greedy.verify_tree,
    "rejection": rejection.verify_tree,
    "lenient": lenience.verify_tree,
    "typical": typical.verify_tree,
    "sample-match": sample_match.verify_tree,
}

__all__ = [
    "CHAIN_RULES",
    "NO_PROPOSAL",
    "RULES",
    "TREE_RULES",
    "ChainRule",
    "TreeRule",
    "TreeVerdict",
    "Uniforms",
    "Verdict",
]
